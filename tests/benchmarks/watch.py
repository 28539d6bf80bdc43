"""`autofit.Watch` in trainings of five public programs: what it says against what was promised, and what it costs.

    python tests/benchmarks/watch.py                  print the frozen figures
    python tests/benchmarks/watch.py --run [JOB ...]  tune and train (six minutes a job), and freeze watch.json

Method. Each job of `public_jobs.py` is tuned at its own batch size, and trains ten epochs of ten seconds with the result's
arguments and a `Watch`, in a process of its own. Then epochs with and without a `Watch` follow each other in that process,
in pairs of turning order; the cost is the ratio of their seconds, with its 95 % interval. In the last job one fit is slowed
down by processes that use every core, and in one a callback keeps memory: what is said is printed as it was. Three jobs
were timed in 12 pairs of 4 s, each with a reading of the memory that else comes every ten seconds at most.
"""

import argparse
import atexit
import importlib
import json
import pathlib
import subprocess
import sys
import tempfile
import time

from plain_keras import STEPS_KNOB, arguments_of
from public_tunes import interval, ratio, tuned

from autofit.machine.host import detect

HERE = pathlib.Path(__file__).parent
FROZEN = HERE / "watch.json"
BATCH_SIZES = {"digits": 128, "reviews": 32, "weather": 256, "volumes": 32, "cats": 16}
DATA = {"volumes": "Volumes"}
EPOCHS, EPOCH_SECONDS, PAIRS = 10, 10.0, 8  # a fit has at least one reading of the memory


def document(job, batch):
    """The tune of a job at its own batch size."""
    programs = HERE / "public_jobs.py"
    knobs = {"batch_size": [batch]}
    return {
        "build_model": f"{programs}:{job}_model",
        "data": f"{programs}:{DATA.get(job, job)}",
        "space": knobs,
        "baseline": {"batch_size": batch},
        "max_seconds": 90,
    }


def train(job, path, kind):
    """Train as a result says; prints JSON: what was said, and for kind "pairs" the seconds of epochs with and without."""
    import keras  # in the process that trains alone

    import autofit

    programs = importlib.import_module("public_jobs")
    result = json.loads(pathlib.Path(path).read_text())
    config = {knob: value for knob, value in result["choice"]["config"].items() if value is not None}
    model = getattr(programs, f"{job}_model")()
    model.steps_per_execution = execution = config.pop(STEPS_KNOB, 1)
    arguments = arguments_of(getattr(programs, DATA.get(job, job)), {k: v for k, v in config.items() if k != "jit_compile"})
    calls = max(8, round(EPOCH_SECONDS * result["choice"]["samples_per_second"] / config["batch_size"] / execution))
    steps = min(calls * execution, steps_of_an_epoch(arguments, config))
    seconds, said, kept = [], [], []

    class Clock(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.began = time.perf_counter()

        def on_epoch_end(self, epoch, logs=None):
            seconds.append(time.perf_counter() - self.began)
            if kind == "leak":
                kept.append(bytearray(b"1") * 2**28)

    def fit(epochs, *callbacks):
        model.fit(**arguments, epochs=epochs, steps_per_epoch=steps, verbose=0, callbacks=[*callbacks, Clock()])

    def watch():
        return autofit.Watch(path, say=said.append)

    if kind != "pairs":
        if kind == "slowed":
            fit(1)
            spin = f"{sys.executable} -c 'while True: pass' > /dev/null 2>&1 & echo $!; "  # no child of ours
            shell = subprocess.run(["sh", "-c", spin * (2 * detect().cores)], check=True, capture_output=True, text=True)
            atexit.register(subprocess.run, ["kill", *shell.stdout.split()], check=True)
        fit(EPOCHS, watch())
        print(json.dumps({"said": said, "seconds": seconds}))
        return
    fit(2)
    by = {True: [], False: []}
    for number in range(PAIRS):
        for is_watched in (True, False) if number % 2 else (False, True):
            fit(1, *([watch()] if is_watched else []))
            by[is_watched].append(seconds[-1])
    print(json.dumps({"with": by[True], "without": by[False]}))


def steps_of_an_epoch(arguments, config):
    """The steps of a whole epoch."""
    x = arguments["x"]
    try:
        return len(x) if not hasattr(x, "shape") else len(x) // config["batch_size"]
    except TypeError:  # unknown
        return sys.maxsize


def run(job):
    """Tune a job, train with its result, and time pairs of epochs; returns what was said and the seconds."""
    result, seconds = tuned(document(job, BATCH_SIZES[job]))
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "result.json"
        path.write_text(json.dumps(result))

        def trained(kind):
            command = [sys.executable, __file__, "--train", job, str(path), kind]
            process = subprocess.run(command, capture_output=True, text=True, check=False)
            if process.returncode:
                raise SystemExit(process.stderr)
            return json.loads(process.stdout.splitlines()[-1])

        row = {"tune_seconds": seconds, "plain": trained("plain")["said"], **trained("pairs")}
        if job == list(BATCH_SIZES)[-1]:
            row |= {kind: trained(kind)["said"] for kind in ("slowed", "leak")}
        return row


def show(frozen):
    """Print the figures."""
    print(frozen["machine"])
    for job, row in frozen["jobs"].items():
        cost = interval(ratio(row["with"], row["without"]))
        epoch = sum(row["without"]) / len(row["without"])
        print(f"\n{job}: an epoch with Watch / without {cost}, {len(row['with'])} pairs of {epoch:.1f} s")
        for kind in ("plain", "slowed", "leak"):
            for line in row.get(kind, ()):
                print(f"  {kind:7} {line}")


def main():
    """Print the frozen figures, or tune, train and freeze."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", nargs="*", metavar="JOB", help="tune and train these jobs (default: all) and freeze them")
    parser.add_argument("--train", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train(*arguments.train)
        return
    frozen = json.loads(FROZEN.read_text()) if FROZEN.exists() else {"jobs": {}}
    for job in arguments.run or (BATCH_SIZES if arguments.run == [] else ()):
        host = detect()
        frozen["machine"] = f"{host.processor}, {host.cores} cores"
        frozen["jobs"][job] = run(job)
        FROZEN.write_text(json.dumps(frozen, indent=1) + "\n")
    show(frozen)


if __name__ == "__main__":
    main()
