"""Batches of four samples: Keras takes longer to call a step than the step."""

import keras
import numpy as np

BATCH_SIZE = 4
STEPS = 1
SAMPLES = 12_000

if __name__ == "__main__":
    draw = np.random.default_rng(0)
    x = draw.normal(size=(SAMPLES, 20)).astype("float32")
    y = draw.integers(2, size=SAMPLES)
    model = keras.Sequential(
        [keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse", steps_per_execution=STEPS)
    model.fit(x, y, batch_size=BATCH_SIZE, epochs=5, verbose=0)
