"""The process wall: a `TrialSpec` goes in, a `Measurement` comes out, whatever happens in between.

    driver (launcher, watcher)                 trial server                      trial (worker, roles, meter)
    ──────────────────────────                 ────────────                      ────────────────────────────
    spec file + request  ──── socket ────────> fork, or plain subprocess ──────> reads spec, loads user code
                                                                                 own process group, log to a file
    phases, measurement  <──────────────────── pipe of the trial's own ───────── JSON lines
    watcher: ΣPSS of the tree, limit, deadline
    exit status          <──── socket ──────── reaps
    outcome.classify(exit status, lines, log, readings) -> Measurement

The server ends with the driver (its socket closes) and takes every process of every trial with it.
"""
