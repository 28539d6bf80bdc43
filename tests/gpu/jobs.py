"""The models and data of the stages. VISIT_SMALL makes them small enough for two cores."""

import functools
import os
import time
from pathlib import Path

import keras
import numpy as np
from keras import layers
from PIL import Image

SMALL = "VISIT_SMALL" in os.environ
PIXELS, FILTERS, COUNT = (16, (8,), 1024) if SMALL else (64, (32, 64, 128), 65536)
CLASSES = 10
BORDER = 4
FILES, FILE_SIDE = (64, 64) if SMALL else (512, 256)
CALLS_BEFORE_A_HANG = 40  # more than it takes to describe the data


def residual(empties=False):
    """A residual network whose norms come first (He et al. 2016, arXiv:1603.05027).

    A trial of one that `empties` gives torch's cache back whenever it has read a peak.
    """
    if empties:
        from autofit.backends.torch.backend import Torch

        reset = Torch.reset_peak
        Torch.reset_peak = lambda *placed, release: reset(*placed, release=True)
    inputs = keras.Input((PIXELS, PIXELS, 3))
    x = layers.Conv2D(FILTERS[0], 3, padding="same")(inputs)
    for filters in FILTERS:
        for stride in (2, 1):
            activated = layers.ReLU()(layers.BatchNormalization()(x))
            y = layers.Conv2D(filters, 3, stride, padding="same", use_bias=False)(
                activated
            )
            y = layers.Conv2D(filters, 3, padding="same")(
                layers.ReLU()(layers.BatchNormalization()(y))
            )
            x = layers.Add()([y, layers.Conv2D(filters, 1, stride)(activated)])
    model = keras.Model(
        inputs,
        layers.Dense(CLASSES, dtype="float32")(layers.GlobalAveragePooling2D()(x)),
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def tiny():
    """A single layer, for the same images."""
    inputs = keras.Input((PIXELS, PIXELS, 3))
    model = keras.Model(
        inputs, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(inputs))
    )
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


class Photos(keras.utils.PyDataset):
    """Random images; each is cropped, flipped and scaled in Python when its batch is made."""

    def __init__(self, batch_size=32, count=COUNT, **kwargs):
        super().__init__(**kwargs)
        self.batch_size = batch_size
        self.count = count
        side = PIXELS + BORDER
        self.images = np.random.default_rng(0).integers(
            0, 256, (256, side, side, 3), "uint8"
        )

    def __len__(self):
        return max(1, self.count // self.batch_size)

    def __getitem__(self, index):
        numbers = range(index * self.batch_size, (index + 1) * self.batch_size)
        return np.stack([self.augmented(number) for number in numbers]), np.asarray(
            numbers
        ) % CLASSES

    def augmented(self, number):
        top = number % BORDER
        left = number // 7 % BORDER
        crop = self.image(number)[top : top + PIXELS, left : left + PIXELS]
        return (crop[:, ::-1] if number % 2 else crop).astype("float32") / 255

    def image(self, number):
        return self.images[number % len(self.images)]


class Files(Photos):
    """JPEG files, decoded and scaled in Python; then as photos."""

    @functools.cached_property
    def files(self):
        return jpeg_files()

    def image(self, number):
        side = PIXELS + BORDER
        with Image.open(self.files[number % len(self.files)]) as image:
            return np.asarray(image.resize((side, side)))


def jpeg_files():
    """Random images of middle frequencies, which are made once."""
    folder = Path(os.environ["VISIT_FOLDER"], "photos")
    files = [folder / f"{number}.jpg" for number in range(FILES)]
    if not files[-1].exists():
        folder.mkdir(exist_ok=True)
        pixels = np.random.default_rng(0).integers(0, 256, (FILES, 64, 64, 3), "uint8")
        for file, each in zip(files, pixels, strict=True):
            Image.fromarray(each).resize((FILE_SIDE, FILE_SIDE)).save(file)
    return files


class Repeated(Photos):
    """The first batch again and again, so that the step takes the time."""

    @functools.cached_property
    def batch(self):
        return super().__getitem__(0)

    def __getitem__(self, index):
        return self.batch


class Hanging(Photos):
    """Photos that stop coming; a file named `hanging` is made when they do."""

    calls = 0

    def __getitem__(self, index):
        self.calls += 1
        if self.calls > CALLS_BEFORE_A_HANG:
            Path(os.environ["VISIT_FOLDER"], "hanging").touch()
            time.sleep(3600)
        return super().__getitem__(index)


# what a tune trains on: torch may decode in processes, which JAX on a GPU may not
DATA = {"jax": Photos, "torch": Files, "tensorflow": Photos}
