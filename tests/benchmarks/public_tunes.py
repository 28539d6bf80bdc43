"""Tunes of public programs beside an exhaustive grid of plain `fit`, and their gains beside another
clock.

    python tests/benchmarks/public_tunes.py                  print the frozen figures
    python tests/benchmarks/public_tunes.py --run [JOB ...]  tune and time (ten minutes a job), and
                                                             freeze public_tunes.json

Method. The jobs are those of `public_jobs.py`. `autofit tune` runs twice as a user runs it, with a
fresh storage, over the values of the grid, with one step in a call. The grid is timed without
autofit (`plain_keras.py`): for each config, in a random order, a process calls `fit`. The three
best of this grid, the answers and the program's own config then run five times more, in turn, and
these rounds alone give the ratios, by pairs, with their 95 % interval. Which config is the best in
a round, the other rounds say: the highest of several readings is too high by chance. "A grid of 15"
is 15 processes with 5 s after their first step.
"""

import argparse
import json
import math
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

from plain_keras import SECONDS, WARM_UP_SECONDS, timed

from autofit.machine.host import detect
from autofit.records.intervals import pooled_half_width
from autofit.records.knobs import DATA_KNOBS, FitConfig

HERE = pathlib.Path(__file__).parent
FROZEN = HERE / "public_tunes.json"
PROGRAMS = HERE / "public_jobs.py"
TUNES = 2
FINALISTS = 3
RUNS = 5
COARSE_GRID = 15
FIXED = {"steps_per_execution": [1]}
THREADS = {
    "workers": (1, 2, 4),
    "max_queue_size": (2, 10),
    "use_multiprocessing": (False,),
}
SPACES = {  # the first batch size is the program's own
    "digits": ((128, 32, 64, 256, 512, 1024, 2048, 4096), "digits", {}),
    "reviews": ((32, 8, 16, 64, 128, 256, 512), "reviews", {}),
    "weather": ((256, 64, 128, 512, 1024, 2048, 4096), "weather", {}),
    "volumes": ((32, 16, 64, 128), "Volumes", THREADS),
    "cats": ((16, 8, 32, 64), "cats", THREADS),
}


def configs_of(job):
    sizes, _, knobs = SPACES[job]
    if not knobs:
        return [FitConfig(size) for size in sizes]
    queues = [
        (1, 10),
        *((w, q) for w in knobs["workers"] if w > 1 for q in knobs["max_queue_size"]),
    ]  # one thread has none
    return [
        FitConfig(size, workers, queue, False)
        for size in sizes
        for workers, queue in queues
    ]


def own_config(job):
    size, *_ = SPACES[job][0]
    return FitConfig(size, 1, 10, False) if SPACES[job][2] else FitConfig(size)


def tune(job):
    """Run `autofit tune` on a job as a user does; returns the result and its wall-clock seconds."""
    sizes, data, knobs = SPACES[job]
    document = {
        "build_model": f"{PROGRAMS}:{job}_model",
        "data": f"{PROGRAMS}:{data}",
        "space": {"batch_size": sorted(sizes), **FIXED, **knobs},
        "baseline": own_config(job).values(),
    }
    with tempfile.TemporaryDirectory() as folder:
        # which is YAML
        (pathlib.Path(folder) / "job.yaml").write_text(json.dumps(document))
        seconds = run_tune("job.yaml", folder)
        return json.loads((pathlib.Path(folder) / "result.json").read_text()), seconds


def run_tune(file, folder):
    """Run `autofit tune` on a file, in a folder, with a fresh storage; returns its seconds.

    It writes result.json there.
    """
    executable = pathlib.Path(sys.executable).with_name("autofit")
    options = ["--output", "result.json", "--storage", "trials.db", "--fresh"]
    started = time.perf_counter()
    process = subprocess.run(
        [executable, "tune", file, *options, "--quiet"],
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
    )
    if process.returncode:
        raise SystemExit(process.stdout + process.stderr)
    return time.perf_counter() - started


def time_grid(configs, time_of):
    """Time each config once, in a random order; `time_of` returns its rate and seconds to start.

    Returns the rates by config, and the seconds of a grid of 15.
    """
    grid = {}
    starts = []
    for config in random.Random(0).sample(configs, len(configs)):
        grid[config], start = time_of(config)
        starts.append(start)
    return grid, COARSE_GRID * (statistics.mean(starts) + WARM_UP_SECONDS + SECONDS)


def time_in_turn(finalists, time_of, rounds=RUNS):
    """The rates of configs that run in turn, each in another order than the last time."""
    rates = {config: [] for config in finalists}
    for number in range(rounds):
        for config in finalists if number % 2 else reversed(finalists):
            rates[config].append(time_of(config)[0])
    return {str(config): values for config, values in rates.items()}


def run(job):
    """Tune a job, time its grid and the finalists; returns its figures."""

    def time_of(config):
        return timed(PROGRAMS.stem, job, SPACES[job][1], config.values())

    tunes = [tune(job) for _ in range(TUNES)]
    grid, coarse_seconds = time_grid(configs_of(job), time_of)
    own = own_config(job)
    rows = []
    ranked = sorted(grid, key=grid.get, reverse=True)
    finalists = [*ranked[:FINALISTS], own]
    for result, seconds in tunes:
        answer = result["fastest"]
        config = FitConfig(**{knob: answer["config"][knob] for knob in DATA_KNOBS})
        finalists.append(config)
        is_shown = config != own and answer["speedup"]["low"] is not None
        rows.append(
            {
                "chosen": str(config),
                "stated": [answer["speedup"][end] for end in ("ratio", "low", "high")]
                if is_shown
                else None,
                "trials": len(result["trials"]),
                "runs": len(result["runs"]),
                "ooms": sum(
                    t["measurement"]["outcome"].endswith("oom")
                    for t in result["trials"]
                ),
                "seconds": seconds,
                "stop_reason": result["stop_reason"],
            }
        )
    return {
        "own": str(own),
        "coarse_seconds": coarse_seconds,
        "grid": {str(config): rate for config, rate in grid.items()},
        "rates": time_in_turn(list(dict.fromkeys(finalists)), time_of),
        "rows": rows,
    }


def ratio_of(rates, others):
    """The geometric mean of pairs of rates, with its 95 % interval."""
    logs = [math.log(rate / other) for rate, other in zip(rates, others, strict=True)]
    mean, half = (
        (statistics.fmean(logs), pooled_half_width(logs)) if any(logs) else (0.0, 0.0)
    )
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def best_in_turn(rates):
    """The rate of the best config in each round; which one is the best, the other rounds say."""
    logs = {
        config: [math.log(rate) for rate in values] for config, values in rates.items()
    }
    rounds = range(len(next(iter(logs.values()))))
    best = (
        max(logs, key=lambda config: sum(logs[config]) - logs[config][number])
        for number in rounds
    )
    return [rates[config][number] for number, config in zip(rounds, best, strict=True)]


def show(job, figures):
    rates = figures["rates"]
    ratios = []
    print(
        f"\n{job}: a grid of {len(figures['grid'])}, the program's own {figures['own']}"
    )
    for row in figures["rows"]:
        of_best = ratio_of(rates[row["chosen"]], best_in_turn(rates))
        timed_gain = ratio_of(rates[row["chosen"]], rates[figures["own"]])
        stated = "none shown"
        inside = ""
        if row["stated"]:
            stated = interval(row["stated"])
            _, low, high = row["stated"]
            inside = "inside" if low <= timed_gain[0] <= high else "OUTSIDE"
        share = row["seconds"] / figures["coarse_seconds"]
        print(
            f"  fastest    {row['chosen']:30} {interval(of_best)}  {row['trials']:2} + "
            f"{row['runs']:2} {row['ooms']:2} "
            f"{row['seconds']:5.0f} {share:5.2f}  {stated:20} {interval(timed_gain):20} {inside}",
            flush=True,
        )
        ratios.append((of_best[0], share))
    return ratios


def interval(values):
    return "{:.2f} ({:.2f} to {:.2f})".format(*values)


def run_and_freeze(description, jobs, run, file):
    """Run the jobs that the command line names, and freeze their figures.

    Returns all of the file.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--run",
        nargs="*",
        metavar="JOB",
        help="tune and time these jobs (default: all) and freeze them",
    )
    arguments = parser.parse_args()
    frozen = json.loads(file.read_text()) if file.exists() else {"jobs": {}}
    for job in arguments.run or (jobs if arguments.run == [] else ()):
        host = detect()
        frozen["machine"] = f"{host.processor}, {host.cores} cores"
        frozen["jobs"][job] = run(job)
        file.write_text(json.dumps(frozen).replace("}, ", "},\n") + "\n")
        print(job, "is timed", file=sys.stderr)
    return frozen


def main():
    frozen = run_and_freeze(__doc__, SPACES, run, FROZEN)
    print(frozen["machine"], frozen.get("note", ""), sep="\n")
    print(
        "choice, its rate to the best's, trials + runs, OOMs, seconds, of a grid of "
        f"{COARSE_GRID}; gain stated, gain timed"
    )
    rows = [
        row for job, figures in frozen["jobs"].items() for row in show(job, figures)
    ]
    ratios, shares = zip(*rows, strict=True)
    print(
        f"\n{len(ratios)} tunes: of the best, median {statistics.median(ratios):.2f}, lowest "
        f"{min(ratios):.2f}; of the "
        f"seconds of a grid of {COARSE_GRID}, median {statistics.median(shares):.2f}, highest "
        f"{max(shares):.2f}"
    )


if __name__ == "__main__":
    main()
