"""Whole tunes of three jobs, and of two of them on JAX and on torch, compared with the best of their exhaustive grid.

    python tests/benchmarks/live.py                       print the frozen figures
    python tests/benchmarks/live.py --run [--backend B]   tune each job (half an hour a backend) and freeze the figures

Method. `autofit tune` runs as a user runs it, with a fresh storage, over the space of the job's table (`tables.py`: five
batch sizes; one thread, 2 and 4 threads or processes, queues of 2 and 10). Then the chosen config and the best of the table
are measured in turn, eight times each, in processes of their own (once for each pair of configs); the ratio is the
geometric mean over neighbouring runs. The tune's seconds are wall-clock time of the whole command, describing and
confirming included; the grid's are those of its 45 configs with four readings each (on JAX and torch two; one is off by
10 %), taken when the table was measured; "of a round" is with one reading each.
"""

import argparse
import functools
import json
import math
import pathlib
import platform
import subprocess
import sys
import tempfile
import time

import tables
import yaml
from generators import result_of

from autofit.backends.protocol import TENSORFLOW
from autofit.machine.host import detect
from autofit.records.intervals import mean_interval
from autofit.records.knobs import DATA_KNOBS
from autofit.records.states import Outcome, Role
from autofit.records.trial import FitConfig, Limits, TrialSpec
from autofit.trial.launcher import ProcessLauncher

HERE = pathlib.Path(__file__).parent
FROZEN = HERE / "live.json"
JOBS = {TENSORFLOW: ("gil", "reading", "decoding"), "jax": ("gil", "reading"), "torch": ("gil", "reading")}
PAIRS = 8


def tune(job, backend, table, folder):
    """Run the command; returns its result and its wall-clock seconds."""
    document = {
        "build_model": f"{HERE / 'jobs.py'}:build_model",
        "model_kwargs": {"job": job},
        "data": f"{HERE / 'jobs.py'}:Data",
        "data_kwargs": {"job": job},
        "backend": backend,
        "space": {"steps_per_execution": [1], **{knob: list(values) for knob, values in table.space.knobs().items()}},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(document))
    command = ["tune", "job.yaml", "--output", "result.json", "--storage", "trials.db", "--fresh", "--quiet"]
    started = time.perf_counter()
    subprocess.run(
        [pathlib.Path(sys.executable).with_name("autofit"), *command], cwd=folder, check=True, capture_output=True
    )
    return json.loads((folder / "result.json").read_text()), time.perf_counter() - started


@functools.cache
def side_by_side(job, backend, chosen, best):
    """The ratio of the chosen config's rate to the best's, measured in turn, and its 95 % interval."""
    if chosen == best:
        return 1.0, 1.0, 1.0
    rates = {chosen: [], best: []}
    with ProcessLauncher(tables.workload_of(job, backend), None) as launcher:
        for number in range(PAIRS):
            for config in (chosen, best) if number % 2 else (best, chosen):
                spec = TrialSpec(Role.MEASURE, config, Limits(None, detect().memory_bytes), 300.0, 2.0)
                measurement = result_of(launcher.run(spec))
                assert measurement.outcome is Outcome.OK, measurement.evidence
                rates[config].append(measurement.samples_per_second)
    mean, half = mean_interval([math.log(a / b) for a, b in zip(rates[chosen], rates[best], strict=True)])
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def run(backend, runs):
    """Tune each job of a backend `runs` times; yields a row for each tune."""
    for job in JOBS[backend]:
        table = tables.Table(job, backend)
        best = max(table.space.configs(), key=table.true_rate)
        for _ in range(runs):
            with tempfile.TemporaryDirectory() as folder:
                result, seconds = tune(job, backend, table, pathlib.Path(folder))
            chosen = FitConfig(**{knob: result["fastest"]["config"][knob] for knob in DATA_KNOBS})
            outcomes = [t["measurement"]["outcome"] for t in result["trials"]]
            yield {
                "job": job,
                "chosen": str(chosen),
                "best": str(best),
                "ratio": side_by_side(job, backend, chosen, best),
                "trials": len(outcomes),
                "ooms": sum(outcome.endswith("oom") for outcome in outcomes),
                "seconds": seconds,
                "grid_seconds": table.seconds(),
                "rounds": table.rounds(),
                "stop_reason": result["stop_reason"],
            }


def head(backend, figures):
    """Print what is over the lines of a backend."""
    print(f"{backend}, {figures['machine']}")
    print(f"{'':9} {'chosen':32} {'best of the grid':32} {'ratio (95 %)':19} trials OOMs    s of grid of a round")


def show(row):
    """Print the line of a tune."""
    share = row["seconds"] / row["grid_seconds"]
    ratio, low, high = row["ratio"]
    print(
        f"{row['job']:9} {row['chosen']:32} {row['best']:32} {ratio:.2f} ({low:.2f} to {high:.2f}) "
        f"{row['trials']:6} {row['ooms']:4} {row['seconds']:4.0f} {share:7.3f} {share * row['rounds']:10.2f}",
        flush=True,
    )


def main():
    """Print the frozen figures, or tune, compare and freeze."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="run the tunes of a backend and freeze their figures")
    parser.add_argument("--backend", choices=JOBS, default=TENSORFLOW, help="the backend of --run (default: tensorflow)")
    parser.add_argument("--runs", type=int, default=3, help="tunes of each job (default: 3)")
    arguments = parser.parse_args()
    frozen = json.loads(FROZEN.read_text())
    if not arguments.run:
        for backend, figures in frozen.items():
            head(backend, figures)
            for row in figures["rows"]:
                show(row)
        return
    host = detect()
    machine = f"{host.processor}, {host.cores} cores, Python {platform.python_version()}"
    figures = frozen[arguments.backend] = {"machine": machine, "rows": []}
    head(arguments.backend, figures)
    for row in run(arguments.backend, arguments.runs):
        figures["rows"].append(row)
        show(row)
        FROZEN.write_text(json.dumps(frozen, indent=1) + "\n")


if __name__ == "__main__":
    main()
