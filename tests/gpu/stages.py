"""The stages of a visit. `stages.py STAGE SECONDS FILE` runs one, and writes what it finds to FILE, as lines of JSON."""

import contextlib
import json
import math
import multiprocessing
import os
import signal
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pynvml
from visit import read

import autofit

HERE, FOLDER = Path(__file__).resolve().parent, Path(os.environ["VISIT_FOLDER"])
BACKEND, SMALL = os.environ["KERAS_BACKEND"], "VISIT_SMALL" in os.environ
DEVICE = "cpu" if SMALL else "gpu"
MIB = 2**20
TIGHT_LIMIT, LIMIT = (96 * MIB, 1024 * MIB) if SMALL else (2048 * MIB, 12288 * MIB)
IS_LIMITED = (
    BACKEND == "tensorflow" or not SMALL
)  # the other backends do not limit the memory of a CPU
SPARE_SECONDS = 15  # of a stage: to start, and to end what has begun


def write(**fields):
    with Path(sys.argv[3]).open("a") as file:
        file.write(json.dumps(fields, default=str) + "\n")


def figure(name, value, low=None, high=None, *, on_cpu=True):
    """Report a figure, or the ends of a list, that is right from `low` to `high` or, without `high`, if it is `low`."""
    # other work spoils rates and seconds of a CPU
    ends, high = (
        [min(value), max(value)] if isinstance(value, list) else [value],
        low if high is None else high,
    )
    text = " to ".join(
        f"{end:.3g}" if isinstance(end, float) else str(end) for end in dict.fromkeys(ends)
    )
    is_right = (
        all(low <= end <= high for end in ends)
        if low is not None and (on_cpu or not SMALL)
        else None
    )
    write(
        figure=[
            name,
            text,
            "" if low is None else str(low) if low == high else f"{low} to {high}",
            is_right,
        ]
    )


def gpu_used_mib():
    """The memory of the first GPU that is in use; 0 in a rehearsal."""
    if SMALL:
        return 0
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used // MIB


def where(limit_bytes):
    """The arguments of autofit for this device."""
    return {"device": DEVICE, "progress": False} | (
        {"device_memory": limit_bytes} if IS_LIMITED else {}
    )


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
    return fields | {"log": m.evidence.log_tail[-3:]} | {name: getattr(m, name) for name in names}


# ── what everything else rests on ─────────────────────────────────────────────────────────────────────────────────────


def fork(seconds):
    """A process that has imported Keras has left the GPU alone, so that its fork can use it."""
    # as autofit does: Keras asks CUDA otherwise; and JAX and TensorFlow leave memory to the stages beside this one
    os.environ |= {"KERAS_TORCH_DEVICE": "cpu" if SMALL else "cuda"}
    os.environ |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    import keras  # noqa: F401  # what a fork of this process needs

    opened = [
        file for file in Path("/proc/self/fd").iterdir() if "nvidia" in os.path.realpath(file)
    ]
    figure("driver's files open before", len(opened), 0)
    forks = ProcessPoolExecutor(1, multiprocessing.get_context("fork"))
    figure(
        "a product in the fork",
        forks.submit(product).result(seconds - SPARE_SECONDS),
        f"64 on {DEVICE}",
    )


def product():
    import keras

    made = keras.ops.ones((64, 64)) @ keras.ops.ones((64, 64))
    return f"{float(made[0, 0]):.0f} on {'cpu' if 'cpu' in str(made.device).lower() else 'gpu'}"


# ── limits, and what is released ──────────────────────────────────────────────────────────────────────────────────────


def limit(seconds):
    """A device limit holds, what is beyond it is recognised, and what follows is as before."""
    small, middle, beyond = (8, 32, 4096) if SMALL else (64, 128, 1024)
    sizes = (small, middle, beyond, small) if IS_LIMITED else (small, middle, small)
    import jobs

    configs = [autofit.FitConfig(size) for size in sizes]
    trials = [
        brief(trial)
        for trial in autofit.measure(jobs.residual, jobs.Photos, configs, **where(TIGHT_LIMIT))
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
    peak, driver_peak = second["device_peak_bytes"], second["driver_peak_bytes"]
    ratio = again["device_peak_bytes"] / first["device_peak_bytes"]
    figure("peak over the limit", peak / TIGHT_LIMIT, 0, 1)
    figure("peak of the same trial again", ratio, 0.98, 1.02, on_cpu=False)
    if driver_peak:  # all backends but torch take the whole limit at once
        figure(
            "MiB beside, by the driver",
            (driver_peak - (peak if BACKEND == "torch" else TIGHT_LIMIT)) // MIB,
            200,
            2500,
        )


HANGING = """
import sys, autofit, jobs
storage, device = sys.argv[1:]
autofit.tune(jobs.residual, jobs.Hanging, storage=storage, device=device, max_trials=1)
"""


def kill(seconds):
    """A tune that is killed while its trial hangs leaves nothing behind."""
    mark, before, below, held = FOLDER / "hanging", gpu_used_mib(), {}, 0
    mark.unlink(missing_ok=True)
    tune = psutil.Popen(
        [sys.executable, "-c", HANGING, str(FOLDER / f"hanging-{BACKEND}.db"), DEVICE], cwd=HERE
    )
    while tune.poll() is None:
        below.update({process.pid: process for process in tune.children(recursive=True)})
        held = max(held, gpu_used_mib() - before)
        if mark.exists():
            tune.send_signal(signal.SIGKILL)
        time.sleep(0.2)
    ended = time.monotonic()
    _, left = psutil.wait_procs(below.values(), 60)
    while gpu_used_mib() - before > 100 and time.monotonic() - ended < 60:
        time.sleep(0.1)
    figure("exit code", tune.returncode, -signal.SIGKILL)
    figure("MiB of the GPU before", held, 200, math.inf, on_cpu=False)
    figure("seconds until all is released", time.monotonic() - ended, 0, 5, on_cpu=False)
    figure("processes left", len(left), 0)
    figure("MiB of the GPU left", gpu_used_mib() - before, -math.inf, 100)


# ── a whole tune against plain fits ───────────────────────────────────────────────────────────────────────────────────


def tune(seconds):
    """A tune as users run it."""
    import jobs

    file, most = FOLDER / f"tune-{BACKEND}", seconds - SPARE_SECONDS
    few = {"max_trials": 3, "space": {"batch_size": [16, 32, 64]}} if SMALL else {}
    asked = {"storage": f"{file}.db", "max_seconds": most, **few, **where(LIMIT)}
    result = autofit.tune(jobs.residual, jobs.Photos, **asked)
    print(result, flush=True)
    result.save(f"{file}.json")
    gain, trials = result.speedup, [brief(trial) for trial in (*result.trials, *result.runs)]
    footprints = [[each.batch_size, each.device_bytes] for each in result.description.footprints]
    write(
        details={
            "chosen": result.config.values(),
            "baseline": gain.baseline.values(),
            "trials": trials,
        }
    )
    write(
        details={
            "rate": result.samples_per_second,
            "gain": [gain.low, gain.high],
            "footprints": footprints,
        }
    )
    outcomes = [trial["outcome"] for trial in trials]
    ran, ooms = outcomes.count("ok"), outcomes.count("device_oom")
    figure("trials that ran", ran, 1, 99)
    figure("trials out of device memory", ooms, 0, 2)
    figure("trials that failed otherwise", len(trials) - ran - ooms, 0, on_cpu=False)
    figure("seconds to the first trial", result.describing_seconds, 0, 40, on_cpu=False)
    figure("seconds in all", result.seconds, 0, round(most + 10), on_cpu=False)
    figure("gain over the baseline", gain.ratio)


def trainer_and_tune():
    """A plain trainer under the limit of the tune, and the tune's details."""
    tuned = read(FOLDER).get(f"tune-{BACKEND}", {}).get("details")
    if not tuned:
        raise SystemExit(f"tune-{BACKEND} has no result")
    import jobs
    import plain

    if not SMALL:
        plain.limit_memory(LIMIT)
    return plain.Trainer(jobs.residual, jobs.Photos), tuned


def rates(seconds):
    """Plain fits in the chosen configuration and the baseline, twice, and in a grid as far as the time allows."""
    until = time.monotonic() + seconds - SPARE_SECONDS
    trainer, tuned = trainer_and_tune()
    sizes, workers = ((64, 16), (1, 4)) if SMALL else ((512, 128, 32), (16, 4, 1))
    grid = [{"batch_size": size, "workers": each} for each in workers for size in sizes]
    first, readings, longest = [tuned["chosen"], tuned["baseline"]], {}, 0.0
    for config in (*first, *grid[:4], *first, *grid[4:]):
        began = time.monotonic()
        if not readings or began + longest < until:
            readings.setdefault(json.dumps(config), []).append(trainer.rate(config))
            longest = max(longest, time.monotonic() - began)
    write(details={"rates": readings})
    rate_of = {config: sum(each) / len(each) for config, each in readings.items()}
    chosen, baseline = (rate_of.get(json.dumps(config)) for config in first)
    figure("plain configurations", len(rate_of), 1, 99)
    figure("chosen over the best of them", chosen / max(rate_of.values()), 0.95, 1, on_cpu=False)
    figure("autofit's rate over plain", tuned["rate"] / chosen, 0.95, 1.05, on_cpu=False)
    low, high = tuned["gain"]
    if low and baseline:
        figure(
            "gain, by plain fits",
            chosen / baseline,
            round(0.97 * low, 2),
            round(1.03 * high, 2),
            on_cpu=False,
        )


def peaks(seconds):
    """Plain fits as in the tune's trials. JAX finds them compiled in the shared cache, and so tries no algorithms here."""
    until = time.monotonic() + seconds - SPARE_SECONDS
    trainer, tuned = trainer_and_tune()
    from plain import DATA_KNOBS, peaks_of

    peak_of, rows = {}, []
    for trial in tuned["trials"]:
        if trial["outcome"] == "ok":
            config = {
                knob: value for knob, value in trial["config"].items() if knob not in DATA_KNOBS
            }
            peak_of[json.dumps(config)] = trial["device_peak_bytes"] or 0
    for text, peak in sorted(peak_of.items(), key=lambda each: each[1]):
        if not rows or time.monotonic() < until:
            config = json.loads(text)
            in_call = config.get("steps_per_execution", 1)
            rows.append(
                (
                    config["batch_size"],
                    in_call,
                    peak,
                    *peaks_of(partial(trainer.train, config, 3 * in_call)),
                )
            )
    write(details={"peaks": rows})
    figure("plain fits", len(rows), 1, 99)
    if rows[0][3] is None:
        return
    held = [
        peak / (reserved or allocated) for _, _, peak, allocated, reserved in rows
    ]  # torch's limit is of the latter
    figure("autofit's peak over plain", held, 0.98, 1.05, on_cpu=False)
    if rows[0][4]:
        figure(
            "reserved over allocated",
            [reserved / allocated for *_, allocated, reserved in rows],
            1,
            1.1,
        )
    true = [(size, allocated) for size, in_call, _, allocated, _ in rows if in_call == 1]
    if len(true) > 1 and len(tuned["footprints"]) > 1:
        slopes = [
            np.polyfit(*zip(*pairs, strict=True), 1)[0] for pairs in (tuned["footprints"], true)
        ]
        figure("a sample, estimated", float(slopes[0] / slopes[1]), 0.9, 1.1, on_cpu=False)


STAGES = {each.__name__: each for each in (fork, limit, kill, tune, rates, peaks)}

if __name__ == "__main__":
    stage, status = sys.argv[1], 0
    try:
        gpu_used_mib()  # an error of NVML's where there is no GPU
        STAGES[stage](float(sys.argv[2]))
    except (SystemExit, pynvml.NVMLError) as reason:
        write(reason=str(reason))  # why the stage cannot run here
    except BaseException:
        traceback.print_exc()
        status = 1
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    os._exit(status)  # data that was not read to its end has threads that wait for ever
