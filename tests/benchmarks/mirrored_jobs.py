"""Ten jobs whose configs `mirrored.py` compares: models and data, six of them a PyDataset, four of
them arrays.

| job | data | step |
| --- | --- | --- |
| patches | rows of arrays on disk, `examples/patches.py` | a small network |
| gil | text hashed in pure Python | two dense layers |
| inflate | records that zlib unpacks | two dense layers |
| reading | `.npy` files, "volumes" of `public_jobs.py` | two dense layers |
| decoding | JPEG files, decoded and cropped | a convnet |
| tabular | rows drawn from a table, each column to its rank | dense layers |
| digits | arrays, of `public_jobs.py` | a convnet |
| reviews | arrays, of `public_jobs.py` | a transformer |
| mlp | arrays | three layers of 1,024, of `zoo.py` |
| tiny | arrays | a layer of 16 |

A PyDataset here is endless, so that its queue never refills between two epochs while a rate is
read.
"""

import functools
import inspect
import io
import pathlib
import sys
import zlib
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
import public_jobs
import zoo
from keras import layers
from PIL import Image

sys.path.append(str(pathlib.Path(__file__).parents[2] / "examples"))
import patches

OWN_BATCH = 32


class Config(NamedTuple):
    """What a config sets; the knobs of the queue are those of a PyDataset."""

    batch_size: int = OWN_BATCH
    workers: int = 1
    use_multiprocessing: bool = False
    steps_per_execution: int = 1

    def data_knobs(self):
        """The arguments of a factory of a PyDataset."""
        knobs = self._asdict()
        del knobs["steps_per_execution"]
        return knobs


class Job(NamedTuple):
    """A model, its data, and the two configs that are compared with Keras's defaults.

    `make_data` takes a batch size and the knobs of the queue, or nothing if it returns arrays.
    """

    build_model: Callable
    make_data: Callable
    own_batch: Config
    larger: Config

    @property
    def takes_knobs(self):
        """Whether the data are a PyDataset."""
        return bool(inspect.signature(self.make_data).parameters)

    def configs(self, backend):
        """Baseline, a config at its batch size, and one at a larger batch size.

        Keras on torch has no steps a call; what is left of the second one if it has no queue either
        is another batch size.
        """
        baseline = Config()
        own = self.own_batch
        larger = self.larger
        if backend == "torch":
            own, larger = (
                each._replace(steps_per_execution=1) for each in (own, larger)
            )
        if own == baseline:
            own = Config(2 * OWN_BATCH)
        return baseline, own, larger


class Endless(keras.utils.PyDataset):
    """Batches of `make(index)` without end."""

    def __init__(self, make, workers=1, use_multiprocessing=False):
        super().__init__(workers, use_multiprocessing, max_queue_size=4)
        self.make = make

    @property
    def num_batches(self):
        return None

    def __getitem__(self, index):
        return self.make(index)


def repeated(dataset_class, batch_size, samples, **knobs):
    """The whole batches of a PyDataset, again and again."""
    dataset = dataset_class(batch_size)
    return Endless(lambda index: dataset[index % (samples // batch_size)], **knobs)


def dense_model(features):
    model = keras.Sequential(
        [
            keras.Input((features,)),
            layers.Dense(128, activation="relu"),
            layers.Dense(1),
        ]
    )
    model.compile("adam", "mse")
    return model


WORDS = 60
BUCKETS = 256


def hashed(batch_size, **knobs):
    """Texts of 60 words, each hashed into one of 256 buckets by Python."""
    draw = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnop"))
    texts = [
        " ".join("".join(word) for word in draw.choice(letters, (WORDS, 6)))
        for _ in range(1000)
    ]

    def make(index):
        x = np.zeros((batch_size, BUCKETS), "float32")
        for row in range(batch_size):
            for word in texts[(index * batch_size + row) % len(texts)].split():
                bucket = 5381
                for letter in word:
                    bucket = (bucket * 33 + ord(letter)) & 0xFFFFFFFF
                x[row, bucket % BUCKETS] += 1
        return x, x[:, :1]

    return Endless(make, **knobs)


def reading_model():
    """Not the program's own: XLA's 3-D convolutions take a second a step on a CPU."""
    flat = [layers.Flatten(), layers.Dense(16, activation="relu")]
    model = keras.Sequential(
        [keras.Input((32, 32, 32, 1)), *flat, layers.Dense(6, activation="softmax")]
    )
    model.compile("adam", "categorical_crossentropy")
    return model


RECORD = 128 * 128


def inflated(batch_size, **knobs):
    """Records of 16 KiB that zlib unpacks, averaged to 256 figures."""
    draw = np.random.default_rng(0)
    rows = np.cumsum(draw.integers(-2, 3, (500, RECORD)), 1).astype("uint8")
    packed = [zlib.compress(row.tobytes()) for row in rows]

    def make(index):
        first = index * batch_size
        records = [
            np.frombuffer(zlib.decompress(packed[row % len(packed)]), "uint8")
            for row in range(first, first + batch_size)
        ]
        x = np.stack(records).reshape(batch_size, BUCKETS, -1).mean(2, "float32") / 255
        return x, x[:, :1]

    return Endless(make, **knobs)


PICTURE = 64


def decoded(batch_size, **knobs):
    """Photographs of 400 x 300 pixels, decoded and cropped to 64 x 64."""
    photographs = []
    for path in public_jobs.PHOTOGRAPHS:
        written = io.BytesIO()
        Image.open(path).convert("RGB").crop((0, 0, *public_jobs.PICTURE)).save(
            written, "jpeg"
        )
        photographs.append(written.getvalue())

    def make(index):
        draw = np.random.default_rng(index)
        x = np.empty((batch_size, PICTURE, PICTURE, 3), "float32")
        for row in range(batch_size):
            picture = Image.open(io.BytesIO(photographs[row % len(photographs)]))
            left, top = (int(draw.integers(side - PICTURE)) for side in picture.size)
            x[row] = picture.crop((left, top, left + PICTURE, top + PICTURE))
        return x / 255, np.zeros((batch_size, 1), "float32")

    return Endless(make, **knobs)


def decoding_model():
    maps = [layers.Conv2D(width, 3, strides=2, activation="relu") for width in (8, 16)]
    model = keras.Sequential(
        [keras.Input((PICTURE, PICTURE, 3)), *maps, layers.Flatten(), layers.Dense(1)]
    )
    model.compile("adam", "mse")
    return model


COLUMNS = 24


def table_rows(batch_size, **knobs):
    """Rows drawn from a table of 200,000.

    Each column is replaced by its rank among 1,000 quantiles.
    """
    table = (
        np.random.default_rng(0).lognormal(size=(200_000, COLUMNS)).astype("float32")
    )
    quantiles = np.quantile(table[:10_000], np.linspace(0, 1, 1000), axis=0)

    def make(index):
        rows = table[np.random.default_rng(index).integers(len(table), size=batch_size)]
        ranks = [
            np.searchsorted(quantiles[:, column], rows[:, column])
            for column in range(COLUMNS)
        ]
        x = np.stack(ranks, 1).astype("float32") / 1000
        return x, x[:, :1]

    return Endless(make, **knobs)


def whole_batches(x, y, samples):
    """The first samples, so many that each batch and each call is whole."""
    return x[:samples], y[:samples]


def mlp_data():
    draw = np.random.default_rng(0)
    return draw.random((2**15, 256), "float32"), draw.integers(0, zoo.CLASSES, 2**15)


def tiny_model():
    model = keras.Sequential(
        [keras.Input((8,)), layers.Dense(16, activation="relu"), layers.Dense(1)]
    )
    model.compile("adam", "mse")
    return model


def tiny_data():
    draw = np.random.default_rng(0)
    return draw.random((2**20, 8), "float32"), draw.random((2**20, 1), "float32")


THREADS = Config(workers=2)
PROCESSES = Config(workers=2, use_multiprocessing=True)

JOBS = {
    "patches": Job(
        patches.build_model,
        functools.partial(repeated, patches.Patches, samples=90_000),
        THREADS._replace(steps_per_execution=32),
        THREADS._replace(batch_size=896, steps_per_execution=8),
    ),
    "gil": Job(
        functools.partial(dense_model, BUCKETS),
        hashed,
        PROCESSES,
        PROCESSES._replace(batch_size=128),
    ),
    "inflate": Job(
        functools.partial(dense_model, BUCKETS),
        inflated,
        THREADS,
        THREADS._replace(batch_size=256),
    ),
    "reading": Job(
        reading_model,
        functools.partial(repeated, public_jobs.Volumes, samples=16_000),
        THREADS,
        THREADS._replace(batch_size=128),
    ),
    "decoding": Job(decoding_model, decoded, THREADS, THREADS._replace(batch_size=128)),
    "tabular": Job(
        functools.partial(dense_model, COLUMNS),
        table_rows,
        THREADS._replace(steps_per_execution=8),
        THREADS._replace(batch_size=512, steps_per_execution=8),
    ),
    "digits": Job(
        public_jobs.digits_model,
        lambda: whole_batches(*public_jobs.digits(), 59_392),
        Config(steps_per_execution=8),
        Config(128),
    ),
    "reviews": Job(
        public_jobs.reviews_model,
        lambda: whole_batches(*public_jobs.reviews(), 24_576),
        Config(steps_per_execution=4),
        Config(96),
    ),
    "mlp": Job(
        functools.partial(zoo.build_model, "mlp"),
        mlp_data,
        Config(steps_per_execution=4),
        Config(256),
    ),
    "tiny": Job(
        tiny_model,
        tiny_data,
        Config(steps_per_execution=32),
        Config(1024, steps_per_execution=32),
    ),
}
