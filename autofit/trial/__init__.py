"""The process wall: turns a `TrialSpec` into a `Measurement` or a `Description`, even if the trial's process dies.

    driver (launcher, watcher)           trial server                     trial (worker)
    ──────────────────────────           ────────────                     ──────────────
    task file + request  ─── socket ───> forks, or spawns ──────────────> reads the task, loads the user's code
                                                                          (own process group, log to a file)
    wire.Message         <── pipe of the trial ────────────────────────── phases, then a measurement or a failure
    watcher: ΣPSS of the tree against limit and deadline
    exit status          <── socket ──── reaps
    outcome.classify(exit status, messages, log, watcher) -> Measurement

When the driver ends, its socket closes: the server ends every process of every trial, and itself.
"""
