"""Train a small network on patches of photographs.

From which of five photographs does a patch come?

A script as people write it, which knows nothing of autofit: `autofit tune examples/train.py`.
"""

from pathlib import Path

import keras
import numpy as np
from PIL import Image

BATCH_SIZE = 32
EPOCHS = 10
PATCHES = 50_000
PIXELS = 8

photos = [
    np.asarray(Image.open(path).convert("RGB"))
    for path in sorted((Path(__file__).parent / "data").glob("*.jpg"))
]
draw = np.random.default_rng(0)
y = draw.integers(len(photos), size=PATCHES)
x = np.empty((PATCHES, PIXELS, PIXELS, 3), "float32")
for label, photo in enumerate(photos):
    windows = np.lib.stride_tricks.sliding_window_view(photo, (PIXELS, PIXELS, 3))[
        :, :, 0
    ]
    rows = np.flatnonzero(y == label)
    places = [draw.integers(length, size=rows.size) for length in windows.shape[:2]]
    x[rows] = windows[tuple(places)] / 255

model = keras.Sequential(
    [
        keras.layers.Input((PIXELS, PIXELS, 3)),
        keras.layers.Flatten(),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(len(photos)),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
model.fit(
    x,
    y,
    batch_size=BATCH_SIZE,
    epochs=EPOCHS,
    validation_split=0.1,
    callbacks=[keras.callbacks.ModelCheckpoint("patches.keras", save_best_only=True)],
)
