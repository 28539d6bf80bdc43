"""Whether a stated gain is the user's: the choices of `phases.py`, timed by plain `fit` without autofit.

    python tests/benchmarks/gains.py           print the frozen figures
    python tests/benchmarks/gains.py --run     time the choices in phases.json (eight minutes) and freeze gains.json

Method. For each job, the config that its last tune chose and the baseline train in turn, three to five times each, in
processes of their own that call Keras's `fit` and nothing of autofit's trials. A callback notes the time at which each step
ends, for five seconds after the first two; counted are the samples of all steps but the first five of each epoch, over
their time. An epoch of the photographs, half a second, is repeated to a long one, as its ends would count more than the
steps. The gain is the ratio of the geometric means, with Welch's 95 % interval.
"""

import argparse
import ast
import json
import math
import os
import pathlib
import subprocess
import sys
import time

from phases import FROZEN as TUNES
from phases import JOBS, job_of

from autofit.workload.reference import Reference

HERE = pathlib.Path(__file__).parent
FROZEN = HERE / "gains.json"
RUNS = 3
BASELINE = {"batch_size": 32, "workers": 1, "max_queue_size": 10, "use_multiprocessing": False}
WARM_UP_SECONDS, SECONDS, LEFT_OUT = 2.0, 5.0, 5


def loaded(reference):
    """The function that FILE.py:NAME names."""
    return Reference(reference, str(HERE)).resolve()


def train(name, config):
    """Samples per second of plain `fit`."""
    import keras  # in the process that trains alone

    document = job_of(name)
    model = loaded(document["build_model"])(**document.get("model_kwargs", {}))
    model.jit_compile = document.get("jit_compile", model.jit_compile)
    make, kwargs, arguments = loaded(document["data"]), document.get("data_kwargs", {}), {}
    if isinstance(make, type):
        its_length, its_item = make.__len__, make.__getitem__
        repeated = type(make.__name__, (make,), {})
        repeated.__len__ = lambda self: 1000 * its_length(self)
        repeated.__getitem__ = lambda self, index: its_item(self, index % its_length(self))
        setattr(sys.modules[make.__module__], make.__name__, repeated)  # a worker process finds it by its name
        arguments["x"] = repeated(**kwargs, **config)
    else:
        arguments["x"], arguments["y"] = make(**kwargs)
        arguments["batch_size"] = config["batch_size"]
    ends = []

    class Ends(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            ends.append([])

        def on_train_batch_end(self, batch, logs=None):
            ends[-1].append(time.perf_counter())
            self.model.stop_training = ends[-1][-1] - ends[0][0] > WARM_UP_SECONDS + SECONDS

    model.fit(**arguments, epochs=10_000, verbose=0, callbacks=[Ends()])
    began = ends[0][0] + WARM_UP_SECONDS
    counted = [[end for end in epoch[LEFT_OUT:] if end > began] for epoch in ends]
    steps = sum(len(epoch) - 1 for epoch in counted if epoch)
    return steps * config["batch_size"] / sum(epoch[-1] - epoch[0] for epoch in counted if epoch)


def timed(name, config):
    """The same, in a process of its own."""
    command = [sys.executable, __file__, "--train", name, json.dumps(config)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def gain(chosen, baseline):
    """The ratio of two configs' rates, with Welch's 95 % interval."""
    from scipy.stats import ttest_ind  # only a run needs it

    interval = ttest_ind(
        [math.log(r) for r in chosen], [math.log(r) for r in baseline], equal_var=False
    ).confidence_interval()
    return [math.exp((interval.low + interval.high) / 2), math.exp(interval.low), math.exp(interval.high)]


def run():
    """Time the choice of each job; yields a row for each."""
    tunes = [row for row in json.loads(TUNES.read_text())["rows"] if row["tree"] == "after"]
    for name in JOBS:
        tune = [row for row in tunes if row["job"] == name][-1]
        chosen, rates = ast.literal_eval(tune["chosen"]), {"chosen": [], "baseline": []}
        baseline = {**BASELINE, **{knob: None for knob, value in chosen.items() if value is None}}
        for number in range(RUNS):
            for label in ("chosen", "baseline") if number % 2 else ("baseline", "chosen"):
                rates[label].append(timed(name, chosen if label == "chosen" else baseline))
        yield {"job": name, "chosen": chosen, "stated": tune["speedup"], "timed": gain(*rates.values()), "rates": rates}


def show(row):
    """Print the line of a job."""
    stated, its = row["stated"], row["timed"]
    knobs = ", ".join(str(value) for value in row["chosen"].values() if value is not None)
    verdict = (
        "yes" if stated[1] <= its[0] <= stated[2] else "overlaps" if stated[1] <= its[2] and its[1] <= stated[2] else "no"
    )
    cells = ["{:5.2f} ({:.2f} to {:.2f})".format(*ratio) for ratio in (stated, its)]
    print(f"{row['job']:11} {knobs:22} {cells[0]:24} {cells[1]:24} {verdict}", flush=True)


def main():
    """Print the frozen figures, or time and freeze."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="time the choices and freeze their figures in gains.json")
    parser.add_argument("--train", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        print(train(arguments.train[0], json.loads(arguments.train[1])), flush=True)
        os._exit(0)  # the threads of an interrupted `fit` wait for ever
    print(f"{'':11} {'chosen':22} {'stated by the tune':24} {'timed by plain fit':24} within what is stated")
    rows = []
    for row in run() if arguments.run else json.loads(FROZEN.read_text()):
        show(row)
        rows.append(row)
        if arguments.run:
            FROZEN.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
