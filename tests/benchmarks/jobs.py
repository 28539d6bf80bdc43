"""The models and the data of the eight jobs that `tables.py` measures, small enough for two cores."""

import os
import pathlib
import random
import tempfile
import zlib

import keras
import numpy as np
from keras import layers
from PIL import Image

CLASSES = 10
PHOTOGRAPHS = sorted((pathlib.Path(__file__).parents[2] / "examples" / "data").glob("*.jpg"))
RECORDS = pathlib.Path(tempfile.gettempdir()) / f"autofit-records-{os.getuid()}"
RECORD_BYTES = 256 * 1024
RECORD_COUNT = 400


def build_model(job):
    """The compiled model of a job."""
    inputs, x = _NETWORKS[job]()
    model = keras.Model(inputs, layers.Dense(CLASSES)(x))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


class Data(keras.utils.PyDataset):
    """Batches of a job's data: x as its network takes it, y (batch,) int32."""

    def __init__(self, job, batch_size, **kwargs):
        super().__init__(**kwargs)
        self.make, self.batch_size = _SAMPLES[job], batch_size
        if job == "reading":
            write_records()

    def __len__(self):
        return 2000

    def __getitem__(self, index):
        numbers = range(index * self.batch_size, (index + 1) * self.batch_size)
        return np.stack([self.make(n) for n in numbers]), np.array([n % CLASSES for n in numbers], "int32")


def write_records():
    """Write the records that the reading job reads, unless they exist."""
    if RECORDS.exists():
        return
    unfinished = pathlib.Path(tempfile.mkdtemp(dir=RECORDS.parent))
    for number in range(RECORD_COUNT):
        with open(unfinished / f"{number}.bin", "wb") as file:
            file.write(random.Random(number).randbytes(RECORD_BYTES))
            os.fsync(file.fileno())
    unfinished.rename(RECORDS)


def _pooled(inputs, widths, strides=2):
    x = inputs
    for width in widths:
        x = layers.Conv2D(width, 3, strides=strides, padding="same", activation="relu")(x)
    return inputs, layers.GlobalAveragePooling2D()(x)


def _volumes():
    inputs = layers.Input((64, 64, 64, 1))
    return inputs, layers.Dense(32, activation="relu")(layers.Flatten()(layers.AveragePooling3D(8)(inputs)))


def _table():
    inputs = layers.Input((20,))
    return inputs, layers.Dense(32, activation="relu")(inputs)


def _text():
    inputs = layers.Input((160,), dtype="int32")
    x = layers.Embedding(2000, 16)(inputs)
    return inputs, layers.Dense(32, activation="relu")(layers.GlobalAveragePooling1D()(x))


def _deep():
    inputs = layers.Input((32, 32, 3))
    x = layers.Conv2D(16, 3, padding="same", activation="relu")(inputs)
    for width in (16, 32, 32):
        x = layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same", activation="relu")(x))
        x = layers.MaxPooling2D()(x)
    return inputs, layers.Flatten()(x)


_NETWORKS = {
    "compute": _deep,
    "reading": lambda: _pooled(layers.Input((64, 64, 3)), (8, 16)),
    "gil": _text,
    "decoding": lambda: _pooled(layers.Input((64, 64, 3)), (8, 16, 32)),
    "pickling": _volumes,
    "device": lambda: _pooled(layers.Input((64, 64, 3)), (16, 16, 16), strides=1),
    "host": lambda: _pooled(layers.Input((384, 384, 3)), (4, 8, 16), strides=4),
    "tiny": _table,
}


_PICTURES = np.random.default_rng(0).random((512, 32, 32, 3), "float32")
_LARGER = np.random.default_rng(0).random((64, 64, 64, 3), "float32")
_VOLUME = np.random.default_rng(0).random((64, 64, 64, 1), "float32")
_WORDS = [f"word{n}" for n in range(5000)]
_ROWS = np.random.default_rng(0).random((4096, 20), "float32")


def _record(number):
    """A record, read from the disk each time: it is dropped from the page cache before and after."""
    file = os.open(RECORDS / f"{number % RECORD_COUNT}.bin", os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        data = os.read(file, RECORD_BYTES)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)
    return np.frombuffer(data, "uint8", 64 * 64 * 3).reshape(64, 64, 3).astype("float32") / 255


def _hashed_text(number):
    words = (_WORDS[(number * 31 + k * 7) % len(_WORDS)] for k in range(160))
    return np.array([zlib.crc32(word[::-1].title().encode()) % 2000 for word in words], "int32")


def _decoded(number, side, crop):
    picture = Image.open(PHOTOGRAPHS[number % len(PHOTOGRAPHS)])
    picture.draft("RGB", (side, side))
    picture = picture.convert("RGB").resize((side, side))
    left = number % (side - crop) if side > crop else 0
    return np.asarray(picture.crop((left, left, left + crop, left + crop)), "float32") / 255


_SAMPLES = {
    "compute": lambda n: _PICTURES[n % 512],
    "reading": _record,
    "gil": _hashed_text,
    "decoding": lambda n: _decoded(n, 96, 64),
    "pickling": lambda n: np.roll(_VOLUME, n % 64, 0),
    "device": lambda n: _LARGER[n % 64],
    "host": lambda n: np.kron(_decoded(n, 96, 96), np.ones((4, 4, 1), "float32")),
    "tiny": lambda n: _ROWS[n % 4096],
}
