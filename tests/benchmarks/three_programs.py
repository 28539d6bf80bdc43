"""autofit, by functions and by a script, beside Optuna and a grid on three public programs.

    python tests/benchmarks/three_programs.py                  print what is frozen
    python tests/benchmarks/three_programs.py --run [JOB ...]  search and time (half an hour a
    job, the weather one and a half), and freeze three_programs.json

Method. The programs are three of `public_jobs.py`, on TensorFlow, alone on the machine: "pictures"
(JPEG files that Python decodes), "digits" (arrays) and "weather" (a table in tf.data). `autofit
tune` runs as a user runs it, with its own space and a fresh storage, three times on a file that
names two functions and three times on a script (`three_programs/`). Optuna's TPE has 20 trials of
the configs of a grid of 45, three times, in one process, as its documentation shows. A process for
each config of that grid calls `fit` (`plain_keras.py`), once, in a random order. The five best of
the grid, all choices and the program's own config then run three times more, or nine, in turn:
these rounds alone give the rates, by pairs, of the best. Which config is the best in a round, the
other rounds say: the highest of several readings is too high by chance. "grid of 15" is the mean of
1,000 draws from the grid: each takes the highest of its readings, whose share the rounds give, or
its one reading if it did not run again.
"""

import itertools
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

import optuna
import public_jobs
from plain_keras import arguments_of, time_fit, timed
from public_tunes import (
    best_in_turn,
    ratio_of,
    run_and_freeze,
    run_tune,
    time_in_turn,
)

from autofit.records.knobs import FitConfig
from autofit.storage import result_files

HERE = pathlib.Path(__file__)
FROZEN = HERE.with_suffix(".json")
SCRIPTS = HERE.with_suffix("")
TIMES = 3
TRIALS = 20
FINALISTS = 5
COARSE_GRID = 15
DRAWS = 1000
WAYS = {
    "functions": "two functions: the model, the data",
    "script": "nothing",
    "tpe": "an objective that builds, trains and times, and its values",
    "grid of 15": "a loop that starts, trains and times, and its values",
    "grid of 45": "the same",
}
# finders of the largest batch on a GPU; they tune no workers, and cannot be timed here
FINDERS = {
    "Lightning, `scale_batch_size`": (
        "largest power of two that fits",
        "doubles until out of memory, in your process",
        "a `LightningModule` with an attribute `batch_size`",
    ),
    "accelerate, `find_executable_batch_size`": (
        "a batch size that fits",
        "10 % less after each failure, in your process",
        "the loop becomes a function of the batch size",
    ),
    "Ultralytics, `check_train_batch_size`": (
        "largest batch for a share of the GPU",
        "a line through the memory of some sizes",
        "a torch model for square pictures",
    ),
    "batchtune": (
        "fastest, or largest that fits",
        "a line through the memory of some sizes",
        "torch's model, optimizer, loss and data set as arguments",
    ),
}


class Job(NamedTuple):
    """The data of a program, and the grid of its configs, the program's own first.

    There are more rounds where the first three disagreed with each other or with further fits.
    """

    data: str
    sizes: tuple
    queues: tuple = ({},)
    rounds: int = 3

    def configs(self):
        return [
            FitConfig(batch_size=size, **queue, steps_per_execution=steps)
            for size, queue, steps in itertools.product(
                self.sizes, self.queues, (1, 8, 32)
            )
        ]


def queue(workers, *, in_processes=False):
    return {
        "workers": workers,
        "max_queue_size": 10,
        "use_multiprocessing": in_processes,
    }


SIZES = (16, 32, 48, 64, 96, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096)
JOBS = {
    "pictures": Job(
        "Pictures",
        (32, 8, 16, 64, 96),
        (queue(1), queue(2), queue(2, in_processes=True)),
    ),
    "digits": Job("digits", (128, *SIZES), rounds=9),
    "weather": Job("weather", (256, 128, *(s for s in SIZES if s != 256)), rounds=9),
}


# what plain_keras.py imports: the three programs, as this process sees them
digits_model = public_jobs.digits_model
pictures_model = public_jobs.pictures_model
weather_model = public_jobs.weather_model
digits = public_jobs.digits
Pictures = public_jobs.Pictures


def weather(batch_size, max_queue_size=0):
    """The table, with the queue that an answer by the script may add."""
    made = public_jobs.weather(batch_size)
    return made.prefetch(max_queue_size) if max_queue_size else made


def tune(name, way):
    """Run `autofit tune` as a user does; returns the choice and what it took."""
    job = JOBS[name]
    document = {
        "build_model": f"{public_jobs.__file__}:{name}_model",
        "data": f"{public_jobs.__file__}:{job.data}",
        "baseline": {"batch_size": job.sizes[0]},
    }
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made)
        (folder / "job.yaml").write_text(json.dumps(document))
        shutil.copy(SCRIPTS / f"{name}.py", folder)
        file = "job.yaml" if way == "functions" else f"{name}.py"
        seconds = run_tune(file, folder)
        record = result_files.load(folder / "result.json")
    runs = [*record.trials, *record.runs]
    return {
        "choice": record.fastest.config.values(),
        "told": [
            getattr(record.fastest.speedup, end) for end in ("ratio", "low", "high")
        ],
        "seconds": seconds,
        "ooms": sum(run.measurement.outcome.is_oom for run in runs),
    }


def search(name, seed):
    """What Optuna's TPE chooses; in the process that calls it."""
    configs = [config.values() for config in JOBS[name].configs()]
    ooms = 0

    def objective(trial):
        nonlocal ooms
        knobs = {
            knob: trial.suggest_categorical(
                knob, list(dict.fromkeys(config[knob] for config in configs))
            )
            for knob in configs[0]
        }
        model = getattr(public_jobs, f"{name}_model")()
        steps = knobs.pop("steps_per_execution")
        model.steps_per_execution = steps
        make = getattr(public_jobs, JOBS[name].data)
        try:
            return time_fit(model, arguments_of(make, knobs), knobs)["rate"]
        except MemoryError:
            ooms = ooms + 1
            raise

    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed)
    )
    study.optimize(objective, TRIALS, catch=MemoryError)
    return {"choice": study.best_params, "ooms": ooms}


def ask_optuna(name, seed):
    started = time.perf_counter()
    command = [sys.executable, HERE, "--search", name, str(seed)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(ended.stdout.splitlines()[-1])
    return {**found, "seconds": time.perf_counter() - started}


def rate_or_none(time_of, config):
    """Samples per second of plain `fit`, 0 if it fails."""
    try:
        return time_of(config)[0]
    except subprocess.CalledProcessError:
        return 0.0


def run(name):
    """All that the table says of a program."""
    job = JOBS[name]
    own, *_ = configs = job.configs()

    def time_of(config):
        return timed(HERE.stem, name, job.data, config.values())

    # the files are there before the first is timed
    if name == "pictures":
        Pictures()
    rows = []
    for number in range(TIMES):
        for way in ("functions", "script", "tpe"):
            found = ask_optuna(name, number) if way == "tpe" else tune(name, way)
            rows.append({"way": way, **found})
            print(name, rows[-1], file=sys.stderr, flush=True)
    started = time.perf_counter()
    grid = {
        config: rate_or_none(time_of, config)
        for config in random.Random(0).sample(configs, len(configs))
    }
    seconds = time.perf_counter() - started
    chosen = [FitConfig(**row["choice"]) for row in rows]
    for row, config in zip(rows, chosen, strict=True):
        row["choice"] = str(config)
    best = sorted(grid, key=grid.get, reverse=True)[:FINALISTS]
    finalists = list({str(config): config for config in [own, *best, *chosen]}.values())
    return {
        "own": str(own),
        "rows": rows,
        "grid": {str(config): rate for config, rate in grid.items()},
        "grid_seconds": seconds,
        "rates": time_in_turn(finalists, time_of, job.rounds),
    }


def share_of_a_draw(figures, best, draw):
    """The share of the best that the highest of 15 configs of the grid has."""
    grid = figures["grid"]
    choice = max(draw.sample(list(grid), COARSE_GRID), key=grid.get)
    again = figures["rates"].get(choice)
    rate = statistics.median(again) if again else grid[choice]
    return rate / best


def show(name, figures):
    """Print what was found for a program; return share and seconds of each way, in the mean."""
    rates = figures["rates"]
    highest = best_in_turn(rates)
    shares = {config: ratio_of(rates[config], highest)[0] for config in rates}
    own = figures["own"]
    print(f"\n{name}: the program's own {own}, {shares[own]:.2f} of the best")
    means = {}
    for way in ("functions", "script", "tpe"):
        rows = [row for row in figures["rows"] if row["way"] == way]
        for row in rows:
            told = ""
            if "told" in row and row["choice"] != own:
                told = "  told {:.2f} ({:.2f} to {:.2f})".format(*row["told"])
                gain = ratio_of(rates[row["choice"]], rates[own])
                told += ", timed {:.2f} ({:.2f} to {:.2f})".format(*gain)
            print(
                f"  {way:10} {shares[row['choice']]:.2f} of the best, {row['seconds']:4.0f} s, "
                f"{row['ooms']} OOMs  {row['choice']}{told}"
            )
        means[way] = (
            statistics.mean(shares[row["choice"]] for row in rows),
            statistics.mean(row["seconds"] for row in rows),
        )
    draw = random.Random(0)
    best = statistics.median(highest)
    drawn = statistics.mean(share_of_a_draw(figures, best, draw) for _ in range(DRAWS))
    grid = figures["grid"]
    first = max(grid, key=grid.get)
    seconds = figures["grid_seconds"]
    means["grid of 15"] = drawn, seconds * COARSE_GRID / len(grid)
    means["grid of 45"] = shares[first], seconds
    for way in ("grid of 15", "grid of 45"):
        print(f"  {way} {means[way][0]:.2f} of the best, {means[way][1]:4.0f} s")
    print(
        f"    the first of the grid was {first}; {list(grid.values()).count(0.0)} OOMs"
    )
    return means


def main():
    if sys.argv[1:2] == ["--search"]:
        print(json.dumps(search(sys.argv[2], int(sys.argv[3]))), flush=True)
        os._exit(0)  # the threads of an interrupted `fit` wait for ever
    os.environ["AUTOFIT_PUBLIC_JOBS"] = str(public_jobs.FILES)
    folders = [str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    frozen = run_and_freeze(__doc__, JOBS, run, FROZEN)
    print(frozen["machine"])
    means = {name: show(name, figures) for name, figures in frozen["jobs"].items()}
    columns = " | ".join(f"{name}: of the best | seconds" for name in means)
    print(f"\n| | to change in the code | {columns} |")
    print("| --- | --- |" + " --- | --- |" * len(means))
    for way, changed in WAYS.items():
        cells = [
            f"{means[name][way][0]:.2f} | {means[name][way][1]:.0f}" for name in means
        ]
        print(f"| {way} | {changed} | {' | '.join(cells)} |")
    print("\n| | finds | how | to change in the code |\n| --- | --- | --- | --- |")
    for name, columns in FINDERS.items():
        print(f"| {name} | {' | '.join(columns)} |")


if __name__ == "__main__":
    main()
