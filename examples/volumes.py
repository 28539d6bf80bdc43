"""A 3-D CNN in mixed precision.

The layer-sum formula, autofit's estimate and the measured peak, for batches of 1 to 4.

    python examples/volumes.py

The common formula sums the outputs of all layers and the parameters, each once, times
the bytes of a number. It ignores gradients, the optimizer, the lifetime of tensors and
the workspace of convolutions.

Measured (AMD EPYC, 2 cores, TensorFlow 2.21, Keras 3.15.1), volumes of 32 x 32 x 32:

    batch    layer sum    estimated     measured
        1        2 MiB        6 MiB       13 MiB
        2        3 MiB        9 MiB       10 MiB
        3        5 MiB       13 MiB       12 MiB
        4        6 MiB       13 MiB       13 MiB

The peak does not grow steadily with the batch, and the estimate of the smallest batch
is half of its peak. Half precision is slow on a CPU: 1 to 3 samples/s.
"""

import argparse
import math

import keras
import numpy as np

import autofit

SIDE, CLASSES = 32, 4
BATCHES = (1, 2, 3, 4)
LIMIT = "12GiB"


def build_model(side: int = SIDE) -> keras.Model:
    """A small encoder over volumes of side³ voxels, in mixed_float16."""
    layers = keras.layers
    half = keras.DTypePolicy("mixed_float16")
    model = keras.Sequential([layers.Input((side, side, side, 1))])
    for filters in (16, 32, 64):
        model.add(
            layers.Conv3D(filters, 3, padding="same", activation="relu", dtype=half)
        )
        model.add(
            layers.Conv3D(
                filters, 3, strides=2, padding="same", activation="relu", dtype=half
            )
        )
    model.add(layers.GlobalAveragePooling3D(dtype=half))
    model.add(layers.Dense(CLASSES, "softmax", dtype="float32"))
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def make_data() -> tuple[np.ndarray, np.ndarray]:
    """Random volumes and labels: only their shape matters."""
    draw = np.random.default_rng(0)
    return draw.random((8, SIDE, SIDE, SIDE, 1), "float32"), draw.integers(
        CLASSES, size=8
    ).astype("int32")


def layer_sum_bytes(batch_size: int) -> int:
    """Sum the outputs of all layers and the parameters, as the formula does.

    Each number has two bytes, in half precision.
    """
    model = build_model()
    outputs = sum(math.prod(layer.output.shape[1:]) for layer in model.layers)
    return 2 * (batch_size * outputs + model.count_params())


def main() -> None:
    """Print formula, estimate and measurement side by side."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    estimate = autofit.estimate(
        build_model, make_data, batch_size=BATCHES, device="cpu", device_memory=LIMIT
    )
    trials = autofit.measure(
        build_model,
        make_data,
        [autofit.FitConfig(b) for b in BATCHES],
        device="cpu",
        device_memory=LIMIT,
    )
    print(f"\n{'batch':>5} {'layer sum':>12} {'estimated':>12} {'measured':>12}")
    for row, trial in zip(estimate.rows, trials, strict=True):
        sizes = (
            layer_sum_bytes(row.batch_size),
            row.device_bytes,
            trial.measurement.device_peak_bytes or math.nan,
        )
        print(
            f"{row.batch_size:5} "
            + " ".join(f"{size / 2**20:8.0f} MiB" for size in sizes)
        )


if __name__ == "__main__":
    main()
