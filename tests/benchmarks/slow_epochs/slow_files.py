"""Compressed files that are read one by one, by the thread that trains."""

import lzma
import pathlib
import sys

import keras
import numpy as np

BATCH_SIZE = 32
WORKERS = 1
PROCESSES = False
QUEUE = 10
STEPS = 1
FILES = 960
FOLDER = pathlib.Path(sys.argv[-1])


def make_files():
    """Write the files into the folder, once."""
    draw = np.random.default_rng(0)
    for number in range(FILES):
        picture = draw.integers(16, size=(160, 160, 3), dtype="uint8")
        (FOLDER / f"{number}.xz").write_bytes(lzma.compress(picture.tobytes()))


class Pictures(keras.utils.PyDataset):
    def __init__(self, batch_size, **kwargs):
        super().__init__(**kwargs)
        self.batch_size = batch_size

    def __len__(self):
        return FILES // self.batch_size

    def __getitem__(self, index):
        numbers = range(index * self.batch_size, (index + 1) * self.batch_size)
        pictures = [
            np.frombuffer(
                lzma.decompress((FOLDER / f"{number}.xz").read_bytes()), "uint8"
            )
            for number in numbers
        ]
        x = np.stack(pictures).reshape(-1, 160, 160, 3)[:, ::4, ::4]
        return (x / 15).astype("float32"), np.array(numbers) % 10


if __name__ == "__main__":
    model = keras.Sequential(
        [
            keras.layers.Conv2D(8, 3, strides=2, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", steps_per_execution=STEPS)
    pictures = Pictures(
        BATCH_SIZE,
        workers=WORKERS,
        use_multiprocessing=PROCESSES,
        max_queue_size=QUEUE,
    )
    model.fit(pictures, epochs=5, verbose=0)
