"""Stages that run plain fits, beside the figures of a tune or on their own."""

import contextlib
import gc
import json
import math
import os
import statistics
import time
from functools import partial

import numpy as np
import psutil
from report import (
    BACKEND,
    FOLDER,
    LIMIT,
    MIB,
    SMALL,
    SPARE_SECONDS,
    figure,
    gpu_used_mib,
    write,
)
from visit import read

RUNS = 11
FIXED_CORES = 4


def trainer_of(job="residual", data="Photos"):
    """A plain trainer of a model and data of `jobs`, under the limit of the tunes."""
    import jobs
    import plain

    if not SMALL:
        plain.limit_memory(LIMIT)
    return plain.Trainer(getattr(jobs, job), getattr(jobs, data))


def trainer_and_tune():
    """A plain trainer of what the tune has tuned, and the tune's details."""
    import jobs

    tuned = read(FOLDER).get(f"tune-{BACKEND}", {}).get("details")
    if not tuned:
        raise SystemExit(f"tune-{BACKEND} has no result")
    return trainer_of(data=jobs.DATA[BACKEND].__name__), tuned


# ── beside a tune ─────────────────────────────────────────────────────────────────────────────────


def rates(seconds):
    """Plain fits in the chosen configuration and the baseline, twice, and in a grid as far as the
    time allows.
    """
    until = time.monotonic() + seconds - SPARE_SECONDS
    trainer, tuned = trainer_and_tune()
    sizes, numbers = ((64, 16), (1, 4)) if SMALL else ((512, 128, 32), (16, 4, 1))
    pools = [{"workers": number} for number in numbers]
    if BACKEND == "torch":
        # on JAX, they hang
        pools.insert(0, {"workers": max(numbers), "use_multiprocessing": True})
    grid = [{"batch_size": size, **pool} for pool in pools for size in sizes]
    first = [tuned["chosen"], tuned["baseline"]]
    readings = {}
    longest = 0.0
    for config in (*first, *grid[:4], *first, *grid[4:]):
        began = time.monotonic()
        if not readings or began + longest < until:
            readings.setdefault(json.dumps(config), []).append(trainer.rate(config))
            write(details={"rates": readings})
            longest = max(longest, time.monotonic() - began)
    rate_of = {config: sum(each) / len(each) for config, each in readings.items()}
    chosen, baseline = (rate_of.get(json.dumps(config)) for config in first)
    figure("plain configurations", len(rate_of), 1, 99)
    figure(
        "chosen over the best of them",
        chosen / max(rate_of.values()),
        0.95,
        1,
        on_cpu=False,
    )
    figure(
        "autofit's rate over plain", tuned["rate"] / chosen, 0.95, 1.05, on_cpu=False
    )
    low, high = tuned["gain"]
    if low and baseline:
        ends = round(0.97 * low, 2), round(1.03 * high, 2)
        figure("gain, by plain fits", chosen / baseline, *ends, on_cpu=False)


def peaks(seconds):
    """Plain fits as in the tune's trials.

    JAX finds them compiled in the shared cache, and so tries no algorithms here.
    """
    until = time.monotonic() + seconds - SPARE_SECONDS
    trainer, tuned = trainer_and_tune()
    from plain import DATA_KNOBS, peaks_of

    peak_of = {}
    rows = []
    for trial in tuned["trials"]:
        if trial["outcome"] == "ok":
            config = {
                knob: value
                for knob, value in trial["config"].items()
                if knob not in DATA_KNOBS
            }
            peak_of[json.dumps(config)] = trial["device_peak_bytes"] or 0
    for text, peak in sorted(peak_of.items(), key=lambda each: each[1]):
        if not rows or time.monotonic() < until:
            config = json.loads(text)
            in_call = config.get("steps_per_execution", 1)
            plain_peaks = peaks_of(partial(trainer.train, config, 3 * in_call))
            rows.append((config["batch_size"], in_call, peak, *plain_peaks))
    write(details={"peaks": rows})
    figure("plain fits", len(rows), 1, 99)
    if SMALL and BACKEND != "tensorflow":
        return
    # torch's limit is of what it reserves
    held = [peak / (reserved or allocated) for _, _, peak, allocated, reserved in rows]
    figure("autofit's peak over plain", held, 0.98, 1.05, on_cpu=False)
    if rows[0][4]:
        ratios = [reserved / allocated for *_, allocated, reserved in rows]
        figure("reserved over allocated", ratios, 1, 1.1)
    true = [
        (size, allocated) for size, in_call, _, allocated, _ in rows if in_call == 1
    ]
    if len(true) > 1 and len(tuned["footprints"]) > 1:
        slopes = [
            np.polyfit(*zip(*pairs, strict=True), 1)[0]
            for pairs in (tuned["footprints"], true)
        ]
        figure(
            "a sample, estimated", float(slopes[0] / slopes[1]), 0.9, 1.1, on_cpu=False
        )


# ── memory ────────────────────────────────────────────────────────────────────────────────────────


def note_rehearsal():
    """Say what the figures of memory are in a rehearsal."""
    if SMALL:
        write(
            reason="no allocator counts on a CPU: the memory of the process stands for it"
        )


def failed(seconds):
    """A batch size in a fresh process, and after a larger one that ran out of memory there."""
    note_rehearsal()
    trainer = trainer_of()
    from plain import held, library, limit_memory, peaks_of

    size, larger = (16, 32) if SMALL else (320, 512)
    train = partial(trainer.train, {"batch_size": size}, 3)
    fresh = peaks_of(train)
    before = held()
    outcome = "ran"
    if not SMALL:
        limit_memory(1.3 * fresh[1])
    try:
        trainer.train({"batch_size": larger}, 3)
    except library.OutOfMemoryError:
        outcome = "out of memory"
    between = held()
    after = [peaks_of(train) for _ in range(2)]
    write(
        details={"fresh": fresh, "before": before, "between": between, "after": after}
    )
    figure(f"a batch of {larger}", outcome, "out of memory", on_cpu=False)
    figure(
        "MiB of it still allocated",
        (between[0] - before[0]) // MIB,
        0,
        100,
        on_cpu=False,
    )
    for number, name in enumerate(("allocated", "reserved")):
        ratios = [peaks[number] / fresh[number] for peaks in after]
        figure(f"{name} after it, over before", ratios, 0.98, 1.05, on_cpu=False)


def beside(seconds):
    """What the driver counts beyond the memory that the library has reserved, for a tiny model and
    a large one.
    """
    note_rehearsal()
    before = gpu_used_mib()
    tiny = trainer_of("tiny")
    large = trainer_of()
    from plain import held

    rows = {}
    for name, trainer, size in (
        ("tiny", tiny, 32),
        ("large", large, 32 if SMALL else 128),
    ):
        trainer.train({"batch_size": size}, 3)
        used = gpu_used_mib()
        reserved = held()[1] // MIB
        rows[name] = used, reserved
        write(details={"before": before, **rows})
        beyond = used - before - reserved
        figure(f"MiB beside, {name} model", beyond, 200, 1000, on_cpu=False)


def snapshots(seconds):
    """What torch's allocator did in the first steps of three batch sizes, as files."""
    note_rehearsal()
    from plain import dump_history, peaks_of, record_history

    for size in (8, 16, 32) if SMALL else (64, 128, 320):
        trainer = trainer_of()
        gc.collect()  # the model of the size before
        record_history()
        allocated, reserved = peaks_of(partial(trainer.train, {"batch_size": size}, 3))
        dump_history(FOLDER / f"snapshot-{size}.pickle")
        figure(
            f"reserved over allocated, batch {size}",
            reserved / allocated,
            1,
            1.5,
            on_cpu=False,
        )
    files = list(FOLDER.glob("snapshot-*.pickle"))
    figure("files", len(files), 3)
    figure("MiB of them", sum(file.stat().st_size for file in files) / MIB, 0, 50)


# ── noise ─────────────────────────────────────────────────────────────────────────────────────────


def short(seconds):
    """Runs of a step of a few milliseconds, by turns on all cores and on the same few."""
    until = time.monotonic() + seconds - SPARE_SECONDS
    trainer = trainer_of()
    config = {"batch_size": 32}
    steps = 20 if SMALL else 400
    cores = sorted(os.sched_getaffinity(0))
    turns = {"free": cores, "fixed": cores[:FIXED_CORES]}
    found = {"free": [], "fixed": []}
    trainer.train(config, steps)
    for _ in range(RUNS):
        for name, allowed in turns.items():
            keep_to(allowed)
            found[name].append(
                config["batch_size"] * steps / trainer.train(config, steps)
            )
        if time.monotonic() > until:
            break
    write(details={"rates": found})
    figure("runs of each", len(found["free"]), 2, RUNS)
    for name, most in (("free", 0.2), ("fixed", 0.03)):
        logarithms = list(map(math.log, found[name]))
        figure(f"samples a second, {name}", statistics.median(found[name]))
        deviation = statistics.stdev(logarithms)
        figure(f"deviation between runs, {name}", deviation, 0, most, on_cpu=False)


def keep_to(cores):
    """Keep all threads of this process to some cores."""
    for thread in psutil.Process().threads():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(thread.id, cores)
