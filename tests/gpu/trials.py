"""Stages that run trials and tunes of autofit."""

import os
import shutil
import signal
import statistics
import sys
import time
from collections import Counter
from dataclasses import replace

import psutil
from report import (
    BACKEND,
    DEVICE,
    FOLDER,
    HERE,
    IS_LIMITED,
    LIMIT,
    MIB,
    SMALL,
    SPARE_SECONDS,
    TIGHT_LIMIT,
    figure,
    gpu_used_mib,
    write,
)

import autofit
from autofit.records.events import Described
from autofit.records.states import Phase
from autofit.search.context import ConfigArrays, SearchContext
from autofit.search.memory import Memory

# of the limit, as a tune expects of a batch size
SHARES = (1.0, 0.96, 0.92, 0.88)


def where(limit_bytes):
    """The arguments of autofit for this device."""
    limit = {"device_memory": limit_bytes} if IS_LIMITED else {}
    return {"device": DEVICE, "progress": False, **limit}


def brief(trial):
    m = trial.measurement
    names = (
        "seconds",
        "samples_per_second",
        "device_peak_bytes",
        "driver_peak_bytes",
        "host_peak_bytes",
        "phase_seconds",
    )
    fields = {
        "config": trial.config.values(),
        "outcome": m.outcome.value,
        "reason": m.evidence.reason[:300],
    }
    return (
        fields
        | {"log": m.evidence.log_tail[-3:]}
        | {name: getattr(m, name) for name in names}
    )


# ── rates, and the seconds of a trial ─────────────────────────────────────────────────────────────


def emptied(seconds):
    """Rates of trials that empty torch's cache when their queue is full, beside others and plain
    fits.
    """
    import jobs
    import plain

    config = {"batch_size": 16 if SMALL else 128, "workers": 2, "max_queue_size": 10}
    rates = {True: [], False: []}
    trials = []
    for empties, times in ((False, 1), (True, 2), (False, 1)):
        found = autofit.measure(
            jobs.residual,
            jobs.Repeated,
            times * [autofit.FitConfig(**config)],
            model_kwargs={"empties": empties},
            **where(LIMIT),
        )
        # plain fits are read without the gaps between epochs, too
        rates[empties] += [
            trial.measurement.steady_samples_per_second or 0.0 for trial in found
        ]
        trials += map(brief, found)
    write(details={"trials": trials})
    figure("trials that ran", sum(trial["outcome"] == "ok" for trial in trials), 4)
    if not SMALL:
        plain.limit_memory(LIMIT)
    trainer = plain.Trainer(jobs.residual, jobs.Repeated)
    fits = [trainer.rate(config) for _ in range(2)]
    write(details={"plain": fits})
    kept = statistics.mean(rates[False])
    figure(
        "rate, emptied over kept",
        statistics.mean(rates[True]) / kept,
        0.95,
        1.02,
        on_cpu=False,
    )
    figure(
        "trial's rate over plain",
        kept / statistics.mean(fits),
        0.95,
        1.05,
        on_cpu=False,
    )


def cached(seconds):
    """A trial whose step is not in the compile cache, and the same trial once more."""
    import jobs

    # its own cache: the other stages share one
    folder = FOLDER / "cold"
    size = 24 if SMALL else 192
    shutil.rmtree(folder, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    trials = autofit.measure(
        jobs.residual, jobs.Photos, 2 * [autofit.FitConfig(size)], **where(LIMIT)
    )
    write(details={"trials": list(map(brief, trials))})
    figure(
        "trials that ran", sum(trial.measurement.outcome == "ok" for trial in trials), 2
    )
    for name, trial, most in zip(("cold", "cached"), trials, (15, 3), strict=True):
        m = trial.measurement
        first = m.phase_seconds.get(Phase.FIRST_STEP, 0.0)
        figure(f"seconds of the first step, {name}", first, 0, most, on_cpu=False)
        figure(f"seconds of the trial, {name}", m.seconds, 0, most + 10, on_cpu=False)


# ── limits, and what is released ──────────────────────────────────────────────────────────────────


def largest(seconds):
    """Trials from the size that is expected to take the whole limit downwards, until one runs."""
    import jobs

    until = time.monotonic() + seconds - SPARE_SECONDS
    limit = TIGHT_LIMIT if SMALL else LIMIT
    tuned = autofit.Result.load(FOLDER / f"tune-{BACKEND}.json")
    limits = replace(tuned.limits, device_bytes=limit)
    cores = tuned.machine.cores
    memory = Memory(
        SearchContext(tuned.description, limits, cores, SMALL),
        (*tuned.trials, *tuned.runs),
    )
    sizes = range(8, 8192, 8)
    configs = ConfigArrays([autofit.FitConfig(size) for size in sizes], cores)
    (expected, _), _ = memory.shares(configs)
    upper = memory.upper_bytes(configs)[0]
    rows = []
    longest = 0.0
    for share in SHARES:
        size = max(
            size for size, each in zip(sizes, expected, strict=True) if each <= share
        )
        began = time.monotonic()
        if rows and began + longest > until:
            break
        (trial,) = autofit.measure(
            jobs.residual, jobs.Photos, [autofit.FitConfig(size)], **where(limit)
        )
        longest = max(longest, time.monotonic() - began)
        rows.append({"share": share, **brief(trial)})
        write(details={"trials": rows})
        if rows[-1]["outcome"] == "ok":
            break
    figure("sizes that were tried", len(rows), 1, len(SHARES))
    figure("the last of them", rows[-1]["outcome"], "ok", on_cpu=False)
    figure("share expected of it", share, 0.92, 1.0, on_cpu=False)
    peak = rows[-1]["device_peak_bytes"] or 0
    figure("its peak over the limit", peak / limit, 0.9, 1.0, on_cpu=False)
    allowed = max(
        size for size, each in zip(sizes, upper, strict=True) if each <= limit
    )
    figure("size allowed, of the one that ran", allowed / size, 0.9, 1.0, on_cpu=False)


def limit(seconds):
    """A device limit holds, what is beyond it is recognised, and what follows is as before."""
    import jobs

    small, middle, beyond = (8, 32, 4096) if SMALL else (64, 128, 1024)
    sizes = (small, middle, beyond, small) if IS_LIMITED else (small, middle, small)
    configs = [autofit.FitConfig(size) for size in sizes]
    trials = [
        brief(trial)
        for trial in autofit.measure(
            jobs.residual, jobs.Photos, configs, **where(TIGHT_LIMIT)
        )
    ]
    write(details={"trials": trials})
    first, second, *oom, again = trials
    ran = sum(trial["outcome"] == "ok" for trial in (first, second, again))
    figure("trials within the limit", ran, 3)
    for trial in oom:
        figure("a trial beyond it", trial["outcome"], "device_oom")
        figure("its seconds", trial["seconds"], 0, 40, on_cpu=False)
    if ran < 3 or not oom:
        return
    peak = second["device_peak_bytes"]
    driver_peak = second["driver_peak_bytes"]
    ratio = again["device_peak_bytes"] / first["device_peak_bytes"]
    figure("peak over the limit", peak / TIGHT_LIMIT, 0, 1)
    figure("peak of the same trial again", ratio, 0.98, 1.02, on_cpu=False)
    if driver_peak:
        # all backends but torch take the whole limit at once
        held = peak if BACKEND == "torch" else TIGHT_LIMIT
        figure("MiB beside, by the driver", (driver_peak - held) // MIB, 200, 2500)


HANGING = """
import sys, autofit, jobs
storage, device = sys.argv[1:]
autofit.tune(jobs.residual, jobs.Hanging, storage=storage, device=device, max_trials=1)
"""


def kill(seconds):
    """A tune that is killed while its trial hangs leaves nothing behind."""
    mark = FOLDER / "hanging"
    before = gpu_used_mib()
    below = {}
    held = 0
    mark.unlink(missing_ok=True)
    tune = psutil.Popen(
        [sys.executable, "-c", HANGING, str(FOLDER / f"hanging-{BACKEND}.db"), DEVICE],
        cwd=HERE,
    )
    while tune.poll() is None:
        below.update(
            {process.pid: process for process in tune.children(recursive=True)}
        )
        held = max(held, gpu_used_mib() - before)
        if mark.exists():
            tune.send_signal(signal.SIGKILL)
        time.sleep(0.2)
    ended = time.monotonic()
    _, left = psutil.wait_procs(below.values(), 60)
    while gpu_used_mib() - before > 100 and time.monotonic() - ended < 60:
        time.sleep(0.1)
    figure("exit code", tune.returncode, -signal.SIGKILL)
    figure("MiB of the GPU before", held, 200, float("inf"), on_cpu=False)
    figure(
        "seconds until all is released", time.monotonic() - ended, 0, 5, on_cpu=False
    )
    figure("processes left", len(left), 0)
    figure("MiB of the GPU left", gpu_used_mib() - before, -float("inf"), 100)


# ── a whole tune ──────────────────────────────────────────────────────────────────────────────────


class Describing(autofit.Progress):
    """Adds up the seconds of each phase until the workload is described."""

    def __init__(self):
        super().__init__()
        self.seconds = Counter()
        self.phase = Phase.STARTING_SERVER
        self.began = time.monotonic()
        self.is_over = False

    def show(self, event):
        super().show(event)
        if not self.is_over:
            now = time.monotonic()
            self.seconds[self.phase] += now - self.began
            self.phase = getattr(event, "phase", None) or self.phase
            self.began = now
            self.is_over = isinstance(event, Described)


def tune(seconds):
    """A tune as users run it."""
    import jobs

    file = FOLDER / f"tune-{BACKEND}"
    most = seconds - SPARE_SECONDS
    shown = Describing()
    few = {"max_trials": 3, "space": {"batch_size": [16, 32, 64]}} if SMALL else {}
    asked = {
        "storage": f"{file}.db",
        "max_seconds": most,
        **few,
        **where(LIMIT),
        "progress": shown,
    }
    result = autofit.tune(jobs.residual, jobs.DATA[BACKEND], **asked)
    print(result, flush=True)
    result.save(f"{file}.json")
    gain = result.speedup
    trials = [brief(trial) for trial in (*result.trials, *result.runs)]
    footprints = [
        [each.batch_size, each.device_bytes] for each in result.description.footprints
    ]
    details = {
        "chosen": result.config.values(),
        "baseline": gain.baseline.values(),
        "trials": trials,
        "rate": result.samples_per_second,
        "gain": [gain.low, gain.high],
        "footprints": footprints,
        "describing": shown.seconds,
        "stop": result.stop_reason,
    }
    write(details=details)
    outcomes = [trial["outcome"] for trial in trials]
    ran = outcomes.count("ok")
    ooms = outcomes.count("device_oom")
    figure("trials that ran", ran, 1, 99)
    figure("trials out of device memory", ooms, 0, 2)
    figure("trials that failed otherwise", len(trials) - ran - ooms, 0, on_cpu=False)
    figure("seconds to the first trial", result.describing_seconds, 0, 40, on_cpu=False)
    for phase, spent in shown.seconds.most_common(3):
        figure(f"seconds {phase.label}", spent)
    figure("seconds in all", result.seconds, 0, round(most), on_cpu=False)
    figure("choice confirmed", str(result.fastest.confirmed), "True", on_cpu=False)
    figure("gain over the baseline", gain.ratio)
