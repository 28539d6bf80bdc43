"""A usual network, while other programs use the machine."""

import keras
import numpy as np

BATCH_SIZE = 128
STEPS = 1

if __name__ == "__main__":
    draw = np.random.default_rng(0)
    x = draw.normal(size=(12_800, 28, 28, 1)).astype("float32")
    y = draw.integers(10, size=12_800)
    model = keras.Sequential(
        [
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", steps_per_execution=STEPS)
    model.fit(x, y, batch_size=BATCH_SIZE, epochs=5, verbose=0)
