"""The code that runs in a trial's process.

    main ── task ── limit ──> describe             the first trial: what data and model are
         └─ script ─┘  └──> measure ── timing      the calls of `fit` that are timed, as plans
                              │           │
                 build, open ─┴── bench ──┴── drive, step_clock
                 model, data      plays a plan     the callback that counts, and what it reads

At an out-of-memory: an error of the user's code or of the backend ends in `task.finish`, which asks
the backend whether it is one; one of a single estimate is a reason why there is none. A process
that the kernel kills says nothing: the parent reads its end (`trial/outcome.py`).
"""
