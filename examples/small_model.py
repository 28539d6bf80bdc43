"""A small model, batch 64 to 4096: where the larger batch multiplies the speed, and where it stops.

    python examples/small_model.py

A step of a small model is mostly overhead that does not grow with the batch. The speed grows with the batch until the
arithmetic takes over; beyond that a larger batch only costs updates.

FIGURES
"""

import argparse

import keras
import numpy as np

import autofit

BATCHES = (64, 128, 256, 512, 1024, 2048, 4096)
FEATURES = 20


def build_model() -> keras.Model:
    """Two small layers."""
    model = keras.Sequential(
        [keras.layers.Input((FEATURES,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(1, "sigmoid")]
    )
    model.compile("adam", "binary_crossentropy")
    return model


def make_data() -> tuple[np.ndarray, np.ndarray]:
    """A table of 100,000 rows, its target a rule that can be learnt."""
    x = np.random.default_rng(0).normal(size=(100_000, FEATURES)).astype("float32")
    return x, (x[:, 0] * x[:, 1] > 0).astype("float32")


def main() -> None:
    """Measure each batch size and print how much faster it is than the first."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    trials = autofit.measure(build_model, make_data, [autofit.FitConfig(b) for b in BATCHES])
    first = trials[0].measurement.samples_per_second
    print(f"\n{'batch':>5} {'samples/s':>10} {'step':>8} {'against 64':>11}")
    for trial in trials:
        m = trial.measurement
        ratio = m.samples_per_second / first
        print(f"{trial.config.batch_size:5} {m.samples_per_second:10,.0f} {1e3 * m.step_seconds:5.2f} ms {ratio:10.1f}x")


if __name__ == "__main__":
    main()
