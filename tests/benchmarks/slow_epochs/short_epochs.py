"""Epochs of four steps, each of which starts two worker processes."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch

BATCH_SIZE = 32
WORKERS = 2


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 4 * 32

    def __getitem__(self, index):
        return np.full(64, index / 128, "float32"), np.int64(index % 4)


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = keras.Sequential(
        [keras.layers.Dense(32, activation="relu"), keras.layers.Dense(4)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    loader = torch.utils.data.DataLoader(
        Samples(), batch_size=BATCH_SIZE, num_workers=WORKERS
    )
    model.fit(loader, epochs=40, verbose=0)
