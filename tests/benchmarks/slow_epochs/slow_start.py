"""A deep network whose first step XLA compiles, for a few short epochs."""

import keras
import numpy as np

BATCH_SIZE = 32
STEPS = 1
LAYERS = 70

if __name__ == "__main__":
    draw = np.random.default_rng(0)
    x = draw.normal(size=(1920, 32)).astype("float32")
    y = draw.integers(2, size=1920)
    inputs = keras.Input((32,))
    h = inputs
    for _ in range(LAYERS):
        h = keras.layers.Add()([h, keras.layers.Dense(32, activation="gelu")(h)])
        h = keras.layers.LayerNormalization()(h)
    model = keras.Model(inputs, keras.layers.Dense(1)(h))
    model.compile("adam", "mse", jit_compile=True, steps_per_execution=STEPS)
    model.fit(x, y, batch_size=BATCH_SIZE, epochs=3, verbose=0)
