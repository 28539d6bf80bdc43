"""The rate of an input pipeline alone, as a trial reads it, against pipelines of known rate.

    python tests/benchmarks/input_rates.py          measure (fifteen minutes), print and freeze input_rates.txt

Truth. Keras's `fit` consumes the pipeline as fast as it goes, with a model whose step does nothing, in a process without
autofit: batches a second from the end of the first seconds on. It is measured before and after the trial; the ratio is that
of the reading to the geometric mean of both. `fit` takes up to a millisecond of its own for each batch.
"""

import argparse
import io
import json
import os
import pathlib
import subprocess
import sys
import time

import keras
import numpy as np

FROZEN = pathlib.Path(__file__).with_suffix(".txt")
BATCH = 32
SETTINGS = [(1, 10, False), (4, 2, False), (4, 10, False), (4, 32, False), (16, 10, False), (16, 32, False)]
PIPELINES = {
    "sleeping": SETTINGS,
    "pure Python": SETTINGS,
    "decoding": SETTINGS,
    "processes": [(1, 10, True), (2, 2, True), (4, 10, True), (4, 32, True)],
    "slow batches": SETTINGS,
    "fast": SETTINGS,
}
TRUE_SECONDS, FIRST_SECONDS = 3.0, 1.5


class Pipeline(keras.utils.PyDataset):
    """Batches of one pipeline; the parameters are autofit's knobs."""

    def __init__(self, kind="fast", batch_size=BATCH, length=100_000, **knobs):
        super().__init__(**knobs)
        self.kind, self.batch_size, self.length = kind, batch_size, length
        picture = np.random.default_rng(0).integers(0, 255, (96, 96, 3), "uint8")
        self.file = None
        if kind in ("decoding", "processes"):
            from PIL import Image  # only these need it

            stream = io.BytesIO()
            Image.fromarray(picture).save(stream, "png")
            self.file = stream.getvalue()

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if self.kind == "sleeping":
            time.sleep(0.4e-3 * self.batch_size)
        elif self.kind == "slow batches":
            time.sleep(0.3)
        elif self.kind == "pure Python":
            for _ in range(self.batch_size):
                sum(n * n for n in range(8000))
        elif self.file is not None:
            from PIL import Image

            for _ in range(self.batch_size):
                Image.open(io.BytesIO(self.file)).load()
        return np.zeros((self.batch_size, 4), "float32"), np.zeros((self.batch_size, 1), "float32")


def build_model():
    """A model whose step takes no time to speak of."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def true_rate(kind, workers, queue, processes):
    """Samples per second of Keras's `fit` with a step that does nothing."""

    class Idle(keras.Model):
        def train_step(self, data):
            return {"loss": zero}

    class Timer(keras.callbacks.Callback):
        """Times the batches after the first seconds."""

        began, first, done, rate = time.perf_counter(), None, 0, 0.0

        def on_train_batch_end(self, batch, logs=None):
            now = time.perf_counter()
            if self.first is None:
                self.first = now if now - self.began >= FIRST_SECONDS else None
                return
            self.done += 1
            if now - self.first >= TRUE_SECONDS and self.done % workers == 0:
                self.rate = self.rate or self.done * BATCH / (now - self.first)
                print(self.rate, flush=True)
                os._exit(0)

    zero, model = keras.ops.zeros(()), Idle()
    model.built = True
    model.compile()
    data = Pipeline(kind, workers=workers, max_queue_size=queue, use_multiprocessing=processes)
    model.fit(data, verbose=0, callbacks=[Timer()])


def row(kind, workers, queue, processes):
    """The truth and the reading of a setting, each in a process of its own."""
    import autofit

    command = [sys.executable, __file__, "--true", json.dumps([kind, workers, queue, processes])]
    truth = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])
    knobs = {"workers": workers, "max_queue_size": queue, "use_multiprocessing": processes}
    (trial,) = autofit.measure(
        build_model, Pipeline, [autofit.FitConfig(BATCH, **knobs)], data_kwargs={"kind": kind}, progress=False
    )
    measured = trial.measurement
    read, spread = measured.input_samples_per_second, measured.input_spread
    again = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])
    seconds = measured.phase_seconds.get("input_alone", 0.0)
    return truth, again, read, spread, measured.samples_per_second, seconds


def main():
    """Measure every setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.true:
        true_rate(*json.loads(arguments.true))
        return
    lines = [f"{'pipeline':14} workers queue   {'truth, twice':>17} {'read':>8} {'ratio':>10} {'±':>6} {'fit':>8}  seconds"]
    print(lines[0])
    for kind, settings in PIPELINES.items():
        for workers, queue, processes in settings:
            truth, again, read, spread, fit, seconds = row(kind, workers, queue, processes)
            off = read / (truth * again) ** 0.5
            within = "" if spread is None else f"{spread:.0%}"
            lines.append(
                f"{kind:14} {workers:7} {queue:5}   {truth:8,.0f} {again:8,.0f} {read:8,.0f} {off:10.3f} {within:>6} "
                f"{fit:8,.0f}  {seconds:7.1f}"
            )
            print(lines[-1], flush=True)
    FROZEN.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
