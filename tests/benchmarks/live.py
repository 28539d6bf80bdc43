"""Whole tunes of three jobs, side by side with the best of their exhaustive grid.

    python tests/benchmarks/live.py [--runs 3]     (about a quarter of an hour; prints, and writes live.json)

Method. `autofit tune` runs as a user runs it, with a fresh storage, over the space of the job's table (`tables.py`: five
batch sizes; one thread, 2 and 4 threads or processes, queues of 2 and 10). Then the config that it chose and the best of
the table are measured anew, in turn, each four times, in processes of their own; the ratio is the geometric mean of
those of neighbouring runs. Tuning seconds are wall-clock time of the whole command, describing and confirming included;
the grid's are those of one round over its 45 configs, as they were when the table was measured.
"""

import argparse
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import tables
import yaml
from generators import result_of

from autofit.machine import detect
from autofit.records import KNOBS, FitConfig, Limits, Outcome, TrialSpec
from autofit.trial.launcher import ProcessLauncher
from autofit.workload import Workload

HERE = pathlib.Path(__file__).parent
FROZEN = HERE / "live.json"
JOBS = ("gil", "reading", "decoding")
PAIRS = 4


def tune(job, table, folder):
    """Run the command; returns its result and the seconds it took."""
    told = {
        "build_model": f"{HERE / 'jobs.py'}:build_model",
        "model_kwargs": {"job": job},
        "data": f"{HERE / 'jobs.py'}:Data",
        "data_kwargs": {"job": job},
        "space": {knob: list(values) for knob, values in table.space.knobs().items()},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(told))
    command = ["tune", "job.yaml", "--output", "result.json", "--storage", "trials.db", "--fresh", "--quiet"]
    started = time.perf_counter()
    subprocess.run(
        [pathlib.Path(sys.executable).with_name("autofit"), *command], cwd=folder, check=True, capture_output=True
    )
    return json.loads((folder / "result.json").read_text()), time.perf_counter() - started


def side_by_side(job, chosen, best):
    """The ratio of the chosen config's rate to the best's, measured in turn."""
    if chosen == best:
        return 1.0
    reference = tables.reference
    workload = Workload(reference("build_model"), reference("Data"), model_kwargs={"job": job}, data_kwargs={"job": job})
    rates = {chosen: [], best: []}
    with ProcessLauncher(workload, None) as launcher:
        for number in range(PAIRS):
            for config in (chosen, best) if number % 2 else (best, chosen):
                spec = TrialSpec("measure", config, Limits(None, detect().memory_bytes), 300.0, 2.0)
                measurement = result_of(launcher.run(spec))
                assert measurement.outcome is Outcome.OK, measurement.evidence
                rates[config].append(measurement.samples_per_second)
    return math.exp(statistics.mean(math.log(a / b) for a, b in zip(rates[chosen], rates[best], strict=True)))


def main():
    """Tune, compare, print and freeze."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="tunes of each job (default: 3)")
    runs, rows = parser.parse_args().runs, []
    print(
        f"{'job':10} {'chosen':32} {'best of the grid':32} {'ratio':>6} {'trials':>6} {'OOMs':>4} {'s':>4} {'of grid':>7}"
    )
    for job in JOBS:
        table = tables.Table(job)
        best = max(table.space.configs(), key=table.true_rate)
        for _ in range(runs):
            with tempfile.TemporaryDirectory() as folder:
                result, seconds = tune(job, table, pathlib.Path(folder))
            chosen = FitConfig(**{knob: result["config"][knob] for knob in KNOBS})
            outcomes = [t["outcome"] for t in result["trials"]]
            row = {
                "job": job,
                "chosen": str(chosen),
                "best": str(best),
                "ratio": side_by_side(job, chosen, best),
                "trials": len(outcomes),
                "ooms": sum(outcome.endswith("oom") for outcome in outcomes),
                "seconds": seconds,
                "of_grid": seconds / table.seconds(),
                "stop_reason": result["stop_reason"],
            }
            rows.append(row)
            print(f"{job:10} {row['chosen']:32} {row['best']:32} {row['ratio']:6.3f} {row['trials']:6} {row['ooms']:4} "
                  f"{seconds:4.0f} {row['of_grid']:7.2f}  {row['stop_reason']}", flush=True)  # fmt: skip
    here = detect()
    FROZEN.write_text(json.dumps({"machine": f"{here.processor}, {here.cores} cores", "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
