"""A small network on patches of photographs.

From which of five photographs does this patch of 8 x 8 pixels come?

The photographs of `data/` are cut once into 100,000 patches, in ten files of arrays
(this takes seconds). `Patches` reads and augments them. A step of such a small network
is mostly overhead that does not grow with the batch: with Keras's default of 32
samples, the processor or GPU waits most of the time. `configs/quickstart.yaml` tunes it.
"""

import math
import os
import shutil
import tempfile
from pathlib import Path

import keras
import numpy as np
from PIL import Image

SOURCES = Path(__file__).resolve().parent / "data"
CACHE = Path(
    os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
)  # a tune has temporary files of its own
SHARDS = CACHE / "autofit-examples" / "patches"
SHARD_COUNT = 10  # the last one is for validation
PATCHES_PER_SHARD = 10_000
PIXELS = 8


def cut_patches(folder: Path = SHARDS) -> Path:
    """Cut the photographs into `folder/x-<n>.npy` and `folder/y-<n>.npy`.

    Nothing is cut if the folder exists; returns the folder.
    """
    if folder.exists():
        return folder
    draw = np.random.default_rng(0)
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=folder.parent))
    photos = [
        np.asarray(Image.open(source).convert("RGB"))
        for source in sorted(SOURCES.glob("*.jpg"))
    ]
    windows = [
        np.lib.stride_tricks.sliding_window_view(photo, (PIXELS, PIXELS, 3))[:, :, 0]
        for photo in photos
    ]
    for shard in range(SHARD_COUNT):
        labels = draw.integers(len(photos), size=PATCHES_PER_SHARD, dtype="int32")
        x = np.empty((PATCHES_PER_SHARD, PIXELS, PIXELS, 3), "uint8")
        for label, cut in enumerate(windows):
            rows = np.flatnonzero(labels == label)
            x[rows] = cut[
                draw.integers(cut.shape[0], size=rows.size),
                draw.integers(cut.shape[1], size=rows.size),
            ]
        np.save(unfinished / f"x-{shard}.npy", x)
        np.save(unfinished / f"y-{shard}.npy", labels)
    try:
        unfinished.rename(folder)
    except OSError:  # another process was faster
        shutil.rmtree(unfinished)
    return folder


class Patches(keras.utils.PyDataset):
    """Batches of patches: x (batch, 8, 8, 3) float32 from 0 to 1, y (batch,) int32.

    Args:
        batch_size: samples a batch.
        part: "training" (the first nine files, augmented) or "validation" (the last
            one, not augmented).
        kwargs: `workers`, `max_queue_size` and `use_multiprocessing`, passed to Keras.
    """

    def __init__(self, batch_size: int = 32, part: str = "training", **kwargs) -> None:
        super().__init__(**kwargs)
        self.batch_size, self.augment = batch_size, part == "training"
        shards = range(SHARD_COUNT - 1) if self.augment else [SHARD_COUNT - 1]
        folder = cut_patches()
        self.x, self.y = (
            [np.load(folder / f"{name}-{n}.npy", mmap_mode="r") for n in shards]
            for name in "xy"
        )

    def __len__(self) -> int:
        return math.ceil(len(self.x) * PATCHES_PER_SHARD / self.batch_size)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        first = index * self.batch_size
        last = min(first + self.batch_size, len(self.x) * PATCHES_PER_SHARD)
        x, y = self.rows(self.x, first, last), self.rows(self.y, first, last)
        x = x.astype("float32") / 255
        brightness = np.random.default_rng().uniform(
            0.8, 1.2
        )  # made here: worker processes would share a copied generator
        return (x * np.float32(brightness) if self.augment else x), y

    @staticmethod
    def rows(shards: list[np.ndarray], first: int, last: int) -> np.ndarray:
        """The rows from `first` up to `last`, counted over all files."""
        parts = []
        while first < last:
            shard, row = divmod(first, PATCHES_PER_SHARD)
            parts.append(shards[shard][row : row + last - first])
            first += len(parts[-1])
        return np.concatenate(parts)


def build_model(width: int = 64) -> keras.Model:
    """Build and compile a small network; `width` is the number of units of its hidden layer."""
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((PIXELS, PIXELS, 3)),
            layers.Flatten(),
            layers.Dense(width, activation="relu"),
            layers.Dense(5),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
    return model
