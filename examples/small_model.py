"""A small model at batch 64 to 4096: how far a larger batch multiplies the speed.

    python examples/small_model.py

A step of a small model is mostly overhead that does not grow with the batch. The speed
grows with the batch until arithmetic dominates; beyond that a larger batch only means
fewer weight updates.

Measured (AMD EPYC, 2 cores, TensorFlow 2.21, Keras 3.15.1):

    batch  samples/s     step  against 64
       64     33,935  1.89 ms        1.0x
      128     70,679  1.81 ms        2.1x
      256     98,643  2.60 ms        2.9x
      512    198,556  2.58 ms        5.9x
     1024    274,591  3.73 ms        8.1x
     2048    353,998  5.79 ms       10.4x
     4096    503,052  8.14 ms       14.8x

From 64 to 1024 the speed grows eightfold for sixteen times the batch. On two cores it
still grows at 4096, by 1.3 to 1.4 for each doubling.
"""

import argparse

import keras
import numpy as np

import autofit

BATCHES = (64, 128, 256, 512, 1024, 2048, 4096)
FEATURES = 20


def build_model() -> keras.Model:
    """Build and compile a network of two small layers."""
    model = keras.Sequential(
        [
            keras.layers.Input((FEATURES,)),
            keras.layers.Dense(32, "relu"),
            keras.layers.Dense(1, "sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy")
    return model


def make_data() -> tuple[np.ndarray, np.ndarray]:
    """A table of 100,000 rows whose target follows a simple rule."""
    x = np.random.default_rng(0).normal(size=(100_000, FEATURES)).astype("float32")
    return x, (x[:, 0] * x[:, 1] > 0).astype("float32")


def main() -> None:
    """Measure each batch size and print how much faster it is than the first."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    trials = autofit.measure(
        build_model, make_data, [autofit.FitConfig(b) for b in BATCHES]
    )
    first = trials[0].measurement.samples_per_second
    print(f"\n{'batch':>5} {'samples/s':>10} {'step':>8} {'against 64':>11}")
    for trial in trials:
        rate, milliseconds = (
            trial.measurement.samples_per_second,
            1e3 * trial.measurement.step_seconds,
        )
        print(
            f"{trial.config.batch_size:5} {rate:10,.0f} {milliseconds:5.2f} ms "
            f"{rate / first:10.1f}x"
        )


if __name__ == "__main__":
    main()
