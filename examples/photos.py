"""A small image classifier on real photographs.

From which of five photographs was this piece cut?

The photographs of `data/` are cut once into 2,000 JPEG files (seconds). `Photos` reads,
decodes and augments them, as a training pipeline does. `configs/sweep.yaml` tunes it.
"""

import math
import os
import random
import shutil
import tempfile
from pathlib import Path

import keras
import numpy as np
from PIL import Image, ImageOps

SOURCES = Path(__file__).resolve().parent / "data"
CACHE = Path(
    os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
)  # a tune has temporary files of its own
PIECES = CACHE / "autofit-examples" / "photos"
PIECES_PER_PHOTO = 400
PIECE_PIXELS = 96
INPUT_PIXELS = 64


def cut_pieces(folder: Path = PIECES) -> Path:
    """Cut the photographs into `folder/<photo>/<number>.jpg`.

    Nothing is cut if the folder exists; returns the folder.
    """
    if folder.exists():
        return folder
    draw = random.Random(0)
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=folder.parent))
    for source in sorted(SOURCES.glob("*.jpg")):
        photo = Image.open(source).convert("RGB")
        (unfinished / source.stem).mkdir()
        for number in range(PIECES_PER_PHOTO):
            side = draw.randint(PIECE_PIXELS, min(photo.size))
            left, top = (
                draw.randint(0, photo.width - side),
                draw.randint(0, photo.height - side),
            )
            piece = photo.resize(
                (PIECE_PIXELS, PIECE_PIXELS), box=(left, top, left + side, top + side)
            )
            piece.save(unfinished / source.stem / f"{number:03d}.jpg", quality=90)
    try:
        unfinished.rename(folder)
    except OSError:  # another process was faster
        shutil.rmtree(unfinished)
    return folder


class Photos(keras.utils.PyDataset):
    """Batches of augmented pieces: x (batch, 64, 64, 3) float32 from 0 to 1, y (batch,) int32.

    Args:
        batch_size: samples a batch.
        part: "training" (nine of ten files, augmented) or "validation" (the tenth, not augmented).
        kwargs: `workers`, `max_queue_size` and `use_multiprocessing`, passed to Keras.
    """

    def __init__(self, batch_size: int = 32, part: str = "training", **kwargs) -> None:
        super().__init__(**kwargs)
        self.batch_size, self.augment = batch_size, part == "training"
        folder = cut_pieces()
        photos = sorted(path.name for path in folder.iterdir())
        files = [
            (path, photos.index(path.parent.name))
            for path in sorted(folder.glob("*/*.jpg"))
        ]
        self.files = [f for i, f in enumerate(files) if (i % 10 == 0) != self.augment]
        random.Random(1).shuffle(self.files)

    def __len__(self) -> int:
        return math.ceil(len(self.files) / self.batch_size)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        files = self.files[index * self.batch_size : (index + 1) * self.batch_size]
        x = np.stack([self.read(path) for path, _ in files])
        return x, np.array([label for _, label in files], "int32")

    def read(self, path: Path) -> np.ndarray:
        """Decode a piece and cut the network's input out of it."""
        image = Image.open(path)
        room = PIECE_PIXELS - INPUT_PIXELS
        left, top = (
            (random.randint(0, room), random.randint(0, room))
            if self.augment
            else (room // 2, room // 2)
        )
        image = image.crop((left, top, left + INPUT_PIXELS, top + INPUT_PIXELS))
        if self.augment and random.random() < 0.5:
            image = ImageOps.mirror(image)
        pixels = np.asarray(image, "float32") / 255
        return (
            np.clip(pixels * random.uniform(0.8, 1.2), 0, 1) if self.augment else pixels
        )


def build_model(width: int = 8) -> keras.Model:
    """Build and compile a small convolutional network.

    Args:
        width: number of filters of its first layer.
    """
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((INPUT_PIXELS, INPUT_PIXELS, 3)),
            layers.Conv2D(width, 3, strides=2, activation="relu"),
            layers.Conv2D(2 * width, 3, strides=2, activation="relu"),
            layers.Conv2D(4 * width, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(5),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
    return model
