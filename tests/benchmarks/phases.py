"""Where the time of a tune goes: whole tunes of five jobs, split by phase, beside those of another checkout.

    python tests/benchmarks/phases.py                                  print the frozen table
    python tests/benchmarks/phases.py --run [--against DIR] [--runs 3] tune (a minute or two a tune) and freeze phases.json

Method. `autofit tune` runs as a user runs it, with a fresh storage; with `--against`, the tunes of the other checkout (the
code before a change) run in turn with ours, on the same machine. Seconds are those of the result: phases are summed over
all trials and confirming runs, "driver" is what is left between them. The figures are medians of the runs.

The jobs: the quickstart; records read from the disk ("io-bound"); a model on arrays; the quickstart with XLA; a deep CNN.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import yaml

from autofit.machine.host import detect

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
FROZEN = HERE / "phases.json"
PHASES = {
    "build": ("starting", "loading", "building", "opening"),
    "first step": ("first_step", "first_longest"),
    "step alone": ("compute_alone",),
    "input alone": ("input_alone",),
    "filling": ("filling_queue", "queue_full"),
    "steady": ("training", "longest_batch"),
    "validate": ("first_epoch", "first_validation", "validation"),
}
COLUMNS = ("seconds", "trials", "runs", "describe", *PHASES, "ending", "driver")


def job_of(name):
    """The tuning file of a job."""
    kinds = {"io-bound": "reading", "deep": "compute"}
    if name in kinds:
        return {
            "build_model": f"{HERE / 'jobs.py'}:build_model",
            "model_kwargs": {"job": kinds[name]},
            "data": f"{HERE / 'jobs.py'}:Data",
            "data_kwargs": {"job": kinds[name]},
            "space": {"batch_size": {"min": 8, "max": 256}, "workers": [1, 2, 4], "max_queue_size": [2, 10]},
            "max_trials": 6,
        }
    file = ROOT / "configs" / ("small_model.yaml" if name == "array" else "quickstart.yaml")
    document = yaml.safe_load(file.read_text().replace("../examples", str(ROOT / "examples")))
    return {**document, "max_seconds": None, **({"jit_compile": True} if name == "xla" else {})}


JOBS = ("quickstart", "io-bound", "array", "xla", "deep")


def tune(name, tree):
    """Tune a job with the code of a checkout; returns its row."""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "job.yaml").write_text(yaml.safe_dump(job_of(name)))
        command = [
            sys.executable,
            "-m",
            "autofit",
            "tune",
            "job.yaml",
            "--output",
            "result.json",
            "--storage",
            "t.db",
            "--quiet",
        ]
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        subprocess.run(command, cwd=folder, check=True, capture_output=True, env=environment)
        return split(json.loads((pathlib.Path(folder) / "result.json").read_text()))


def split(result):
    """The seconds of a result by phase."""
    trials, runs = result["trials"], result["runs"]
    measured = [trial["measurement"] for trial in (*trials, *runs)]
    row = {"seconds": result["seconds"], "trials": len(trials), "runs": len(runs), "describe": result["describing_seconds"]}
    for column, phases in PHASES.items():
        row[column] = sum(m["phase_seconds"].get(phase, 0.0) for m in measured for phase in phases)
    total = sum(m["seconds"] for m in measured)
    row["ending"] = total - sum(row[column] for column in PHASES)
    row["driver"] = row["seconds"] - row["describe"] - total
    return row


def show(frozen):
    """Print the table."""
    print(frozen["machine"])
    print(f"{'':22}" + "".join(f"{column:>12}" for column in COLUMNS))
    for name in JOBS:
        seconds = {}
        for tree in frozen["trees"]:
            rows = [row for row in frozen["rows"] if row["job"] == name and row["tree"] == tree]
            if rows:
                medians = {column: statistics.median(row[column] for row in rows) for column in COLUMNS}
                seconds[tree] = medians["seconds"]
                print(f"{name:11}{tree:7}{len(rows):3} " + "".join(f"{medians[column]:12.1f}" for column in COLUMNS))
        if len(seconds) == 2:
            print(f"{'':11}{'ratio':7}{'':4}{seconds['after'] / seconds['before']:12.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="tune, and freeze the seconds in phases.json")
    parser.add_argument("--against", type=pathlib.Path, help="another checkout, whose tunes run in turn with ours")
    parser.add_argument("--runs", type=int, default=3, help="tunes of each job (default: 3)")
    parser.add_argument("--jobs", default=",".join(JOBS), help="the jobs to run; the frozen rows of others stay")
    arguments = parser.parse_args()
    if arguments.run:
        machine = detect()
        trees = {"before": arguments.against, "after": ROOT} if arguments.against else {"after": ROOT}
        jobs = arguments.jobs.split(",")
        old = json.loads(FROZEN.read_text())["rows"] if FROZEN.exists() else []
        kept = [row for row in old if row["job"] not in jobs and row["tree"] in trees]
        frozen = {"machine": f"{machine.processor}, {machine.cores} cores", "trees": list(trees), "rows": kept}
        for name in jobs:
            for _ in range(arguments.runs):
                for label, tree in trees.items():
                    frozen["rows"].append({"job": name, "tree": label, **tune(name, tree)})
                    FROZEN.write_text(json.dumps(frozen, indent=1) + "\n")
    show(json.loads(FROZEN.read_text()))


if __name__ == "__main__":
    main()
