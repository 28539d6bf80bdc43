"""A validation on four times the samples of an epoch."""

import os

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np

BATCH_SIZE = 32
SAMPLES = 1280


def digits(count):
    draw = np.random.default_rng(count)
    x = draw.normal(size=(count, 28, 28, 1)).astype("float32")
    return x, draw.integers(10, size=count)


if __name__ == "__main__":
    model = keras.Sequential(
        [
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    x, y = digits(SAMPLES)
    model.fit(
        x,
        y,
        batch_size=BATCH_SIZE,
        epochs=5,
        validation_data=digits(8 * SAMPLES),
        verbose=0,
    )
