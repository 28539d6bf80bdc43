"""Run each trial in its own process: a `TrialSpec` becomes a `Measurement` or a `Description`, even
if that process dies.

    driver (launcher, watcher)           trial server      trial (worker)
    ──────────────────────────           ────────────      ──────────────
    task file + request  ─── socket ───> forks, spawns ──> reads the task, loads the user's code
                                                           (own process group, log to a file)
    wire.Message         <── pipe of the trial ─────────── phases, then a measurement or a failure
    watcher: memory of the process tree (ΣPSS) against the limit, time against the deadline
    exit status          <── socket ──── reaps
    outcome.classify(exit status, messages, log, readings) -> Measurement

When the driver ends, its socket closes. The server then ends every process of every trial, and
exits.
"""
