"""From which of five photographs does a patch of 8 x 8 pixels come? A convnet learns it.

A script as people write it, which knows nothing of autofit: `autofit tune examples/train.py`.
"""

from pathlib import Path

import keras
import numpy as np
from PIL import Image

BATCH_SIZE = 32
EPOCHS = 10
PATCHES = 20_000
PIXELS = 8

photos = [
    np.asarray(Image.open(path).convert("RGB"))
    for path in sorted((Path(__file__).parent / "data").glob("*.jpg"))
]
draw = np.random.default_rng(0)
y = draw.integers(len(photos), size=PATCHES)
x = np.empty((PATCHES, PIXELS, PIXELS, 3), "float32")
for patch, label in zip(x, y, strict=True):
    top, left = (draw.integers(side - PIXELS) for side in photos[label].shape[:2])
    patch[:] = photos[label][top : top + PIXELS, left : left + PIXELS] / 255

model = keras.Sequential(
    [
        keras.layers.Input((PIXELS, PIXELS, 3)),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(32, activation="relu"),
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
