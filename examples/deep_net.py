"""A deep convolutional net on 16 x 16 pictures.

It has 200 million parameters, and takes several times their bytes to train.

    python examples/deep_net.py                                 estimate, measure, draw
                                                                deep_net.png
    autofit estimate configs/deep_net.yaml --batch-size 1,2,4   estimate only

Small pictures do not mean little memory: weights, gradients and Adam's two moments take
four times the bytes of the weights before any activation of a batch.

Measured (AMD EPYC, 2 cores, TensorFlow 2.21, Keras 3.15.1), four and a half minutes:

    198,241,290 parameters, 0.74 GiB
    batch  estimated   measured of weights
        1   3.55 GiB   2.53 GiB       3.4x
        2   3.52 GiB   2.46 GiB       3.3x
        4   3.16 GiB   2.42 GiB       3.3x

The batch adds little to the weights, gradients and moments. The estimate is 30 to 43 %
too high here, more than its stated error.
"""

import argparse

import keras
import numpy as np

import autofit

PIXELS, CLASSES = 16, 10
BATCHES = (1, 2, 4)
LIMIT = "16GiB"


def build_model(width: int = 1024, depth: int = 22) -> keras.Model:
    """Convolutions of one width on 16 x 16, halved three times.

    They have 198 million parameters at the defaults.
    """
    layers = keras.layers
    model = keras.Sequential([layers.Input((PIXELS, PIXELS, 3))])
    for number in range(depth):
        model.add(
            layers.Conv2D(
                width,
                3,
                strides=2 if number < 3 else 1,
                padding="same",
                activation="relu",
            )
        )
    model.add(layers.GlobalAveragePooling2D())
    model.add(layers.Dense(CLASSES, "softmax"))
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def make_data() -> tuple[np.ndarray, np.ndarray]:
    """Random pictures and labels: only their shape matters."""
    draw = np.random.default_rng(0)
    return draw.random((256, PIXELS, PIXELS, 3), "float32"), draw.integers(
        CLASSES, size=256
    ).astype("int32")


def main() -> None:
    """Estimate and measure each batch size, print and draw both."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

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
    weights = estimate.description.parameter_bytes / 2**30
    print(f"\n{estimate.description.parameter_count:,} parameters, {weights:.2f} GiB")
    print(f"{'batch':>5} {'estimated':>10} {'measured':>10} {'of weights':>10}")
    measured = []
    for row, trial in zip(estimate.rows, trials, strict=True):
        peak = trial.measurement.device_peak_bytes
        measured.append(peak / 2**30 if peak else float("nan"))
        estimated = row.device_bytes / 2**30
        print(
            f"{row.batch_size:5} {estimated:6.2f} GiB {measured[-1]:6.2f} GiB "
            f"{measured[-1] / weights:9.1f}x"
        )
    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    axes.plot(
        BATCHES,
        [row.device_bytes / 2**30 for row in estimate.rows],
        "--",
        label="estimated, nothing trained",
    )
    axes.plot(BATCHES, measured, "o", label="measured peak")
    axes.axhline(weights, color="gray", linewidth=1)
    axes.annotate(
        "the weights alone",
        (BATCHES[-1], weights),
        ha="right",
        va="bottom",
        color="gray",
    )
    axes.set(
        xlabel="batch size", ylabel="memory of the train step, GiB", ylim=(0, None)
    )
    axes.set_title("200 million parameters on 16 x 16 pictures")
    axes.legend()
    figure.savefig("deep_net.png", dpi=120)
    print("\ndrawn to deep_net.png")


if __name__ == "__main__":
    main()
