"""The models and data of the stages. VISIT_SMALL makes them small enough for two cores."""

import os
import time
from pathlib import Path

import keras
import numpy as np
from keras import layers

SMALL = "VISIT_SMALL" in os.environ
PIXELS, FILTERS, COUNT = (16, (8,), 1024) if SMALL else (64, (32, 64, 128), 65536)
CLASSES, BORDER = 10, 4
CALLS_BEFORE_A_HANG = 40  # more than it takes to describe the data


def residual():
    """A residual network whose norms come first (He et al. 2016, arXiv:1603.05027)."""
    inputs = keras.Input((PIXELS, PIXELS, 3))
    x = layers.Conv2D(FILTERS[0], 3, padding="same")(inputs)
    for filters in FILTERS:
        for stride in (2, 1):
            activated = layers.ReLU()(layers.BatchNormalization()(x))
            y = layers.Conv2D(filters, 3, stride, padding="same", use_bias=False)(activated)
            y = layers.Conv2D(filters, 3, padding="same")(
                layers.ReLU()(layers.BatchNormalization()(y))
            )
            x = layers.Add()([y, layers.Conv2D(filters, 1, stride)(activated)])
    model = keras.Model(
        inputs, layers.Dense(CLASSES, dtype="float32")(layers.GlobalAveragePooling2D()(x))
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


class Photos(keras.utils.PyDataset):
    """Random images; each is cropped, flipped and scaled in Python when its batch is made."""

    def __init__(self, batch_size=32, count=COUNT, **kwargs):
        super().__init__(**kwargs)
        self.batch_size, self.count, side = batch_size, count, PIXELS + BORDER
        self.images = np.random.default_rng(0).integers(0, 256, (256, side, side, 3), "uint8")

    def __len__(self):
        return max(1, self.count // self.batch_size)

    def __getitem__(self, index):
        numbers = range(index * self.batch_size, (index + 1) * self.batch_size)
        return np.stack([self.augmented(number) for number in numbers]), np.asarray(
            numbers
        ) % CLASSES

    def augmented(self, number):
        crop = self.images[number % 256, number % BORDER :, number // 7 % BORDER :][
            :PIXELS, :PIXELS
        ]
        return (crop[:, ::-1] if number % 2 else crop).astype("float32") / 255


class Hanging(Photos):
    """Photos that stop coming; a file named `hanging` is made when they do."""

    calls = 0

    def __getitem__(self, index):
        self.calls += 1
        if self.calls > CALLS_BEFORE_A_HANG:
            Path(os.environ["VISIT_FOLDER"], "hanging").touch()
            time.sleep(3600)
        return super().__getitem__(index)
