"""Both answers of tunes, at the program's batch size and at any, beside a grid of plain `fit`.

    python tests/benchmarks/live_tunes.py                  print the frozen figures
    python tests/benchmarks/live_tunes.py --run [JOB ...]  tune and time (ten minutes a job) and
    freeze live_tunes.json

Method. The jobs are those of `pipelines.py` and one of `public_jobs.py`. `autofit tune` runs twice
as a user runs it, with a fresh storage, over the values of the grid; ten times on the quickstart's
own file. Twice more it runs on that file beside a neighbour that keeps both cores busy for 15 to 45
s, and lets them rest as long. The grid is timed without autofit (`plain_keras.py`): for each
config, in a random order, a process calls `fit`. The best of this grid, of all and at the program's
batch size, the answers and the program's own config then run five times more, in turn, and these
rounds alone give the ratios, by pairs, with their 95 % interval. Which config is the best in a
round, the other rounds say: the highest of several readings is too high by chance. "A grid of 15"
is 15 processes with 5 s after their first step.
"""

import contextlib
import itertools
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
from types import MappingProxyType
from typing import NamedTuple

from plain_keras import timed
from public_tunes import (
    COARSE_GRID,
    best_in_turn,
    interval,
    ratio_of,
    run_and_freeze,
    run_tune,
    time_grid,
    time_in_turn,
)

from autofit.records.knobs import FitConfig
from autofit.storage import result_files

HERE = pathlib.Path(__file__).parent
FROZEN = HERE / "live_tunes.json"
ANSWERS = "same_batch", "fastest"
FINALISTS = 2
BUSY_SECONDS = 15, 45


class Job(NamedTuple):
    """Where a job's model and data are, and the values of its grid, the program's own first.

    A `file` is what `autofit tune` takes; without one, its space is the grid.
    """

    module: str
    data: str
    batch_sizes: tuple
    knobs: dict = MappingProxyType({})
    steps: tuple = (1,)
    file: pathlib.Path | None = None
    tunes: int = 2
    tunes_beside_a_neighbour: int = 0

    def configs(self):
        """The configs of the grid; the first is the program's own."""
        kinds = itertools.product(*self.knobs.values())
        queues = [dict(zip(self.knobs, kind, strict=True)) for kind in kinds]
        calls = (
            [{"steps_per_execution": n} for n in self.steps]
            if max(self.steps) > 1
            else [{}]
        )
        return [
            FitConfig(batch_size=size, **queue, **call)
            for size, queue, call in itertools.product(self.batch_sizes, queues, calls)
        ]

    def document(self, name):
        """What `autofit tune` takes, as YAML."""
        programs = HERE / f"{self.module}.py"
        space = {
            "batch_size": sorted(self.batch_sizes),
            "steps_per_execution": self.steps,
        }
        return json.dumps(
            {
                "build_model": f"{programs}:{name}_model",
                "data": f"{programs}:{self.data}",
                "space": space | self.knobs,
                "baseline": self.configs()[0].values(),
            }
        )


TWO_THREADS = {
    "workers": (1, 2),
    "max_queue_size": (10,),
    "use_multiprocessing": (False,),
}
OF_ANY_KIND = {**TWO_THREADS, "use_multiprocessing": (False, True)}
SIZES = (32, 16, 64, 128, 256, 512)
JOBS = {
    "patches": Job(
        "pipelines",
        "Patches",
        (*SIZES, 1024),
        OF_ANY_KIND,
        steps=(1, 32),
        file=HERE.parents[1] / "configs" / "quickstart.yaml",
        tunes=10,
        tunes_beside_a_neighbour=2,
    ),
    "gil": Job("pipelines", "gil", SIZES, OF_ANY_KIND),
    "inflate": Job("pipelines", "inflate", SIZES, TWO_THREADS),
    "digits": Job("public_jobs", "digits", (128, 32, 64, 256, 512, 1024, 2048, 4096)),
}


@contextlib.contextmanager
def neighbour(seed):
    """Another program that keeps all cores busy for a while, and rests as long, again and again."""
    code = (
        "import os, random, time\n"
        f"draw = random.Random({seed})\n"
        "for _ in range(os.cpu_count() - 1): os.fork()\n"
        f"while os.path.exists('/proc/{os.getpid()}'):\n"
        f"    seconds = draw.uniform(*{BUSY_SECONDS})\n"
        "    end = time.monotonic() + seconds\n"
        "    while time.monotonic() < end: pass\n"
        "    time.sleep(seconds)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def tune(name):
    """Run `autofit tune` on a job as a user does; returns the result and its wall-clock seconds."""
    job = JOBS[name]
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made)
        (folder / "job.yaml").write_text(job.document(name))
        seconds = run_tune(job.file or "job.yaml", folder)
        return result_files.load(folder / "result.json"), seconds


def row_of(record, seconds, *, is_beside):
    """The figures of a tune; an answer that is the baseline states no gain."""
    runs = [*record.trials, *record.runs]
    row = {
        "is_beside": is_beside,
        "trials": len(record.trials),
        "runs": len(record.runs),
        "ooms": sum(run.measurement.outcome.is_oom for run in runs),
        "seconds": seconds,
        "stop_reason": record.stop_reason,
    }
    own = record.fastest.speedup.baseline
    ordered = sorted(runs, key=lambda run: run.decided_after or 0.0)
    row["baseline_rates"] = [
        run.samples_per_second for run in ordered if run.config == own
    ]
    for name in ANSWERS:
        answer = getattr(record, name) or record.fastest
        row[name] = str(answer.config)
        speedup = answer.speedup
        row[f"{name}_stated"] = (
            None if answer.config == own else [speedup.ratio, speedup.low, speedup.high]
        )
        row[f"{name}_shown"] = speedup.is_shown
    return row


def run(name):
    """Tune a job, time its grid and the finalists; returns its figures."""
    job = JOBS[name]
    rows = []
    configs = {}
    kinds = [False] * job.tunes + [True] * job.tunes_beside_a_neighbour
    for number, is_beside in enumerate(kinds):
        with neighbour(number) if is_beside else contextlib.nullcontext():
            record, seconds = tune(name)
        rows.append(row_of(record, seconds, is_beside=is_beside))
        answers = [getattr(record, each) or record.fastest for each in ANSWERS]
        configs |= {str(answer.config): answer.config for answer in answers}
        print(name, rows[-1], file=sys.stderr, flush=True)

    def time_of(config):
        return timed(job.module, name, job.data, config.values())

    own = job.configs()[0]
    grid, coarse_seconds = time_grid(job.configs(), time_of)
    ranked = sorted(grid, key=grid.get, reverse=True)
    at_own = [config for config in ranked if config.batch_size == own.batch_size]
    finalists = [*ranked[:FINALISTS], *at_own[:FINALISTS], own]
    configs = {str(config): config for config in finalists} | configs
    return {
        "own": str(own),
        "at_own": [
            text for text, c in configs.items() if c.batch_size == own.batch_size
        ],
        "coarse_seconds": coarse_seconds,
        "grid": {str(config): rate for config, rate in grid.items()},
        "rates": time_in_turn(list(configs.values()), time_of),
        "rows": rows,
    }


def show(name, figures):
    rates = figures["rates"]
    own = figures["own"]
    shares = []
    print(f"\n{name}: a grid of {len(figures['grid'])}, the program's own {own}")
    for row in figures["rows"]:
        seconds = row["seconds"] / figures["coarse_seconds"]
        beside = "  beside a neighbour" if row["is_beside"] else ""
        print(
            f"  {row['trials']} + {row['runs']} runs, {row['ooms']} OOMs, {row['seconds']:.0f} s: "
            f"{seconds:.2f} of a grid{beside}"
        )
        for answer in ANSWERS:
            others = (
                rates
                if answer == "fastest"
                else {c: rates[c] for c in figures["at_own"]}
            )
            of_best = ratio_of(rates[row[answer]], best_in_turn(others))
            shares.append((answer, of_best[0], seconds, row["is_beside"]))
            text = f"    {answer:10} {row[answer]:38} {interval(of_best)}"
            if row[f"{answer}_stated"]:
                timed_gain = ratio_of(rates[row[answer]], rates[own])
                stated = row[f"{answer}_stated"]
                agree = stated[1] <= timed_gain[2] and timed_gain[1] <= stated[2]
                word = "shown" if row[f"{answer}_shown"] else "likely"
                text += f"  {word} {interval(stated)}, timed {interval(timed_gain)}"
                text += "" if agree else " APART"
            print(text)
        if row["is_beside"]:
            print(
                "    baseline read", *(f"{rate:,.0f}" for rate in row["baseline_rates"])
            )
    return shares


def main():
    frozen = run_and_freeze(__doc__, JOBS, run, FROZEN)
    print(frozen["machine"])
    print(
        "answer, its rate to the best's; gain stated, gain timed, APART if their intervals are"
    )
    shares = [
        share
        for name, figures in frozen["jobs"].items()
        for share in show(name, figures)
    ]
    print()
    for is_beside in (False, True):
        for answer in ANSWERS:
            group = [
                share for share in shares if (share[0], share[3]) == (answer, is_beside)
            ]
            ratios = [share[1] for share in group]
            seconds = [share[2] for share in group]
            where = " beside a neighbour" if is_beside else ""
            print(
                f"{len(group)} {answer}{where}: of the best, median "
                f"{statistics.median(ratios):.2f}, "
                f"lowest {min(ratios):.2f}, {sum(ratio >= 0.95 for ratio in ratios)} at 0.95 "
                "or more; "
                f"of the seconds of a grid of {COARSE_GRID}, median "
                f"{statistics.median(seconds):.2f}, "
                f"highest {max(seconds):.2f}"
            )


if __name__ == "__main__":
    main()
