"""Six public programs, rebuilt from what they publish: layers, sizes, batch size and input.

Their data is made here. Each job with its program, its input and its batch size:

    digits    keras.io, "Simple MNIST convnet"
              arrays, 128
    reviews   keras.io, "Text classification with Transformer"
              arrays, 32
    weather   keras.io, "Timeseries forecasting for weather prediction"
              `timeseries_dataset_from_array`, 256
    volumes   A. and S. Amidi, "How to generate data on the fly", and a small net
              `PyDataset`, `.npy` files, 32
    cats      F. Chollet, "image classification models using very little data"
              `ImageDataGenerator` on files, 16
    pictures  keras.io, "PyDataset" (its example), and a small convnet
              `PyDataset`, JPEG files that Python decodes and resizes, 32

`AUTOFIT_PUBLIC_JOBS` names the folder of their files, where a process has a temporary folder of its
own.
"""

import math
import os
import pathlib
import tempfile

import keras
import numpy as np
from keras import layers
from PIL import Image

FILES = pathlib.Path(
    os.environ.get("AUTOFIT_PUBLIC_JOBS")
    or f"{tempfile.gettempdir()}/autofit-public-{os.getuid()}"
)
PHOTOGRAPHS = sorted(
    (pathlib.Path(__file__).parents[2] / "examples" / "data").glob("*.jpg")
)
PICTURE = (400, 300)


def _convnet(shape, widths, *head):
    """A convolution with pooling for each width, flattened, and a head."""
    maps = [
        each
        for width in widths
        for each in (layers.Conv2D(width, 3, activation="relu"), layers.MaxPooling2D(2))
    ]
    return keras.Sequential([keras.Input(shape), *maps, layers.Flatten(), *head])


def digits_model():
    network = _convnet(
        (28, 28, 1), (32, 64), layers.Dropout(0.5), layers.Dense(10, "softmax")
    )
    network.compile("adam", "categorical_crossentropy", metrics=["accuracy"])
    return network


def digits():
    """60,000 pictures (28, 28, 1) float32 and their classes (10,) float64, one-hot."""
    random = np.random.default_rng(0)
    return random.random((60_000, 28, 28, 1), "float32"), keras.utils.to_categorical(
        random.integers(0, 10, 60_000), 10
    )


class Positions(layers.Layer):
    """Embeds tokens and their positions."""

    def __init__(self, length, vocabulary, width):
        super().__init__()
        self.tokens = layers.Embedding(vocabulary, width)
        self.places = layers.Embedding(length, width)

    def call(self, tokens):
        """(batch, length) to (batch, length, width)."""
        return self.tokens(tokens) + self.places(
            keras.ops.arange(keras.ops.shape(tokens)[-1])
        )


def reviews_model():
    """One transformer block on 200 tokens, averaged."""
    inputs = keras.Input((200,))
    x = Positions(200, 20_000, 32)(inputs)
    attended = layers.Dropout(0.1)(layers.MultiHeadAttention(2, 32)(x, x))
    x = layers.LayerNormalization(epsilon=1e-6)(x + attended)
    mapped = layers.Dropout(0.1)(layers.Dense(32)(layers.Dense(32, "relu")(x)))
    x = layers.GlobalAveragePooling1D()(
        layers.LayerNormalization(epsilon=1e-6)(x + mapped)
    )
    x = layers.Dense(20, "relu")(layers.Dropout(0.1)(x))
    model = keras.Model(inputs, layers.Dense(2, "softmax")(layers.Dropout(0.1)(x)))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def reviews():
    """25,000 texts (200,) int32 and their classes () int64."""
    random = np.random.default_rng(0)
    return random.integers(0, 20_000, (25_000, 200), "int32"), random.integers(
        0, 2, 25_000
    )


def weather_model():
    model = keras.Sequential([keras.Input((120, 7)), layers.LSTM(32), layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.001), "mse")
    return model


def weather(batch_size=256):
    """Windows of 120 steps, each sixth of 720, from 300,693 rows of 7 figures."""
    table = np.random.default_rng(0).normal(size=(300_693, 7))
    return keras.utils.timeseries_dataset_from_array(
        table,
        table[:, 1:2],
        sequence_length=120,
        sampling_rate=6,
        batch_size=batch_size,
    )


def volumes_model():
    maps = [layers.Conv3D(width, 3, strides=2, activation="relu") for width in (8, 16)]
    network = keras.Sequential(
        [
            keras.Input((32, 32, 32, 1)),
            *maps,
            layers.Flatten(),
            layers.Dense(6, "softmax"),
        ]
    )
    network.compile("adam", "categorical_crossentropy")
    return network


class Volumes(keras.utils.PyDataset):
    def __init__(self, batch_size=32, **kwargs):
        super().__init__(**kwargs)
        self.batch_size = batch_size
        self.files = sorted(_folder("volumes", _write_volumes).glob("*.npy")) * 16
        self.classes = np.random.default_rng(0).integers(0, 6, len(self.files))

    def __len__(self):
        return len(self.files) // self.batch_size

    def __getitem__(self, index):
        batch = slice(index * self.batch_size, (index + 1) * self.batch_size)
        x = np.empty((self.batch_size, 32, 32, 32, 1))
        for number, file in enumerate(self.files[batch]):
            x[number] = np.load(file)
        return x, keras.utils.to_categorical(self.classes[batch], 6)


def cats_model():
    head = layers.Dense(64, "relu"), layers.Dropout(0.5), layers.Dense(1, "sigmoid")
    network = _convnet((150, 150, 3), (32, 32, 64), *head)
    network.compile("rmsprop", "binary_crossentropy", metrics=["accuracy"])
    return network


def cats(batch_size=16, workers=1, max_queue_size=10, use_multiprocessing=False):
    """2,000 JPEG files in two classes: decoded, sheared, zoomed, mirrored."""
    from keras.src.legacy.preprocessing.image import (
        ImageDataGenerator,
    )  # public as keras.preprocessing.image's in Keras 2

    augmentation = ImageDataGenerator(
        rescale=1 / 255, shear_range=0.2, zoom_range=0.2, horizontal_flip=True
    )
    folder = _folder("cats", _write_pictures)
    batches = augmentation.flow_from_directory(
        folder, (150, 150), class_mode="binary", batch_size=batch_size
    )
    batches.workers = workers
    batches.max_queue_size = max_queue_size
    batches.use_multiprocessing = use_multiprocessing
    return batches


def pictures_model():
    maps = [
        layers.Conv2D(width, 3, strides=2, activation="relu") for width in (8, 16, 32)
    ]
    network = keras.Sequential(
        [keras.Input((200, 200, 3)), *maps, layers.GlobalAveragePooling2D()]
    )
    network.add(layers.Dense(2, "softmax"))
    network.compile("adam", "sparse_categorical_crossentropy")
    return network


class Pictures(keras.utils.PyDataset):
    """1,000 JPEG files of 400 x 300 pixels in two classes: decoded, resized."""

    def __init__(self, batch_size=32, **kwargs):
        super().__init__(**kwargs)
        self.batch_size = batch_size
        files = sorted(_folder("cats", _write_pictures).glob("*/*.jpg"))
        self.files = np.random.default_rng(0).permutation(files)[:1000]

    def __len__(self):
        return math.ceil(len(self.files) / self.batch_size)

    def __getitem__(self, index):
        batch = self.files[index * self.batch_size : (index + 1) * self.batch_size]
        x = [np.asarray(Image.open(file).resize((200, 200))) / 255 for file in batch]
        return np.array(x, "float32"), np.array([f.parent.name == "dog" for f in batch])


def _folder(name, write):
    """The folder of a job's files, written at the first call."""
    folder = FILES / name
    if not folder.exists():
        FILES.mkdir(exist_ok=True)
        unfinished = pathlib.Path(tempfile.mkdtemp(dir=FILES))
        write(unfinished)
        unfinished.rename(folder)
    return folder


def _write_volumes(folder):
    """1,000 volumes of float64."""
    random = np.random.default_rng(0)
    for number in range(1000):
        np.save(folder / f"{number}.npy", random.random((32, 32, 32, 1)))


def _write_pictures(folder):
    """1,000 pictures of 400 x 300 pixels for each of two classes, cut from photographs."""
    random = np.random.default_rng(0)
    photographs = [Image.open(path).convert("RGB") for path in PHOTOGRAPHS]
    for name in ("cat", "dog"):
        (folder / name).mkdir()
        for number in range(1000):
            photograph = photographs[number % len(photographs)]
            left, top = (
                int(random.integers(0, side - size + 1))
                for side, size in zip(photograph.size, PICTURE, strict=True)
            )
            photograph.crop((left, top, left + PICTURE[0], top + PICTURE[1])).save(
                folder / name / f"{number}.jpg"
            )
