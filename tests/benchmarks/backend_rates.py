"""autofit's rate of a config against the user's own `fit(verbose=1)`, on each backend of Keras.

    python tests/benchmarks/backend_rates.py                 print the frozen figures
    python tests/benchmarks/backend_rates.py --run [ROUNDS]  measure (seven minutes a round) and freeze them

Method. For each backend and case, a trial of autofit and plain `fit` in a process without autofit run in turn. Plain `fit`
traces its step in an epoch of twenty steps; then an epoch of ten seconds is timed from its beginning to its end, from
outside: nothing looks at a batch. (0.15 s of an epoch go by before its first step and after its last; a trial does not
count them.) The ratio is the geometric mean of the pairs' with its 95 % interval (t).
"""

import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).parent
FROZEN = HERE / "backend_rates.json"
BACKENDS = ("tensorflow", "jax", "torch")
CASES = {
    "MLP, small steps": ("mlp", 64, {"workers": 1}),
    "CNN": ("cnn", 64, {"workers": 0}),
    "CNN, 2 threads": ("cnn", 64, {"workers": 2}),
    "CNN, 2 processes": ("cnn", 64, {"workers": 2, "use_multiprocessing": True}),
    "slow input": ("slow", 64, {"workers": 1}),
    "slow input, 2 threads": ("slow", 64, {"workers": 2}),
}
EPOCH_SECONDS, TRACING_STEPS, ROUNDS, QUEUE = 10.0, 20, 3, 10


def build_model(job):
    """The model of a job: an MLP whose step takes less than a millisecond, or a CNN."""
    import keras  # with the backend of this process

    layers = keras.layers
    if job == "mlp":
        hidden = [layers.Dense(64, activation="relu") for _ in range(3)]
        model = keras.Sequential([keras.Input((64,)), *hidden, layers.Dense(1)])
    else:
        maps = [layers.Conv2D(16, 3, activation="relu"), layers.MaxPooling2D(), layers.Conv2D(32, 3, activation="relu")]
        model = keras.Sequential([keras.Input((32, 32, 3)), *maps, layers.Flatten(), layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def make_data(job, batch_size, batches=None, **knobs):
    """Random batches; those of "slow" take as long as a step of a few hundredths of a second."""
    import keras  # with the backend of this process
    import numpy as np

    class Data(keras.utils.PyDataset):
        def __len__(self):
            return batches or 1000

        def __getitem__(self, index):
            draw = np.random.default_rng(index)
            if job == "slow":
                time.sleep(0.03)
            shape = (64,) if job == "mlp" else (32, 32, 3)
            return draw.random((batch_size, *shape), "float32"), draw.random((batch_size, 1), "float32")

    return Data(**knobs)


def plain(job, size, knobs, batches):
    """Samples per second of an epoch of plain `fit`, whose step is traced before."""
    import keras  # with the backend of this process

    times = []

    class Epochs(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            times.append(time.perf_counter())

        def on_epoch_end(self, epoch, logs=None):
            times.append(time.perf_counter())

    model = build_model(job)
    model.fit(make_data(job, size, TRACING_STEPS, max_queue_size=QUEUE, **knobs), verbose=1)
    model.fit(make_data(job, size, batches, max_queue_size=QUEUE, **knobs), verbose=1, callbacks=[Epochs()])
    return batches * size / (times[1] - times[0])


def measured(backend, job, size, knobs):
    """Samples per second by a trial of autofit."""
    import autofit

    config = autofit.FitConfig(size, knobs["workers"], QUEUE, knobs.get("use_multiprocessing", False))
    kwargs = {"model_kwargs": {"job": job}, "data_kwargs": {"job": job}, "backend": backend, "progress": False}
    measurement = autofit.measure(build_model, make_data, [config], **kwargs)[0].measurement
    return measurement.samples_per_second


def pair(backend, case):
    """The two rates of a pair."""
    job, size, knobs = CASES[case]
    own = measured(backend, job, size, knobs)
    batches = max(TRACING_STEPS, round(EPOCH_SECONDS * own / size))
    command = [sys.executable, __file__, "--plain", json.dumps([job, size, knobs, batches])]
    environment = {**os.environ, "KERAS_BACKEND": backend, "CUDA_VISIBLE_DEVICES": "-1"}
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    return own, float(output.split()[-1])


def show(rows):
    """Print the figures."""
    from scipy.stats import t as student

    print(f"{'':24}{'':12}{'step':>9}{'plain fit':>12}   autofit / plain fit")
    for row in rows:
        ratios = [math.log(own / plain) for own, plain in row["pairs"]]
        mean, count = statistics.fmean(ratios), len(ratios)
        half = student.ppf(0.975, count - 1) * statistics.stdev(ratios) / math.sqrt(count) if count > 1 else math.inf
        rate = statistics.median(plain for _, plain in row["pairs"])
        step = 1000 * CASES[row["case"]][1] / rate
        interval = f"{math.exp(mean):.3f} ({math.exp(mean - half):.3f} to {math.exp(mean + half):.3f})"
        print(f"{row['case']:24}{row['backend']:12}{step:6.1f} ms{rate:12,.0f}   {interval}")


def main():
    """Print the frozen figures, or measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=int, nargs="?", const=ROUNDS, help="measure so many pairs, and freeze them")
    parser.add_argument("--plain", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.plain:
        print(plain(*json.loads(arguments.plain)), flush=True)
        os._exit(0)
    if arguments.run:
        rows = [{"backend": backend, "case": case, "pairs": []} for case in CASES for backend in BACKENDS]
        for _ in range(arguments.run):
            for row in rows:
                row["pairs"].append(pair(row["backend"], row["case"]))
        FROZEN.write_text(json.dumps(rows, indent=1) + "\n")
    show(json.loads(FROZEN.read_text()))


if __name__ == "__main__":
    main()
