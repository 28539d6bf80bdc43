"""A torch DataLoader that makes its samples in the process that trains."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch

BATCH_SIZE = 32
WORKERS = 0
SAMPLES = 2400


class Signals(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        signal = np.random.default_rng(index).normal(size=4096)
        for _ in range(6):
            signal = np.fft.irfft(np.fft.rfft(signal) * 0.9, 4096)
        return signal[:256].astype("float32"), np.int64(index % 4)


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = keras.Sequential(
        [keras.layers.Dense(32, activation="relu"), keras.layers.Dense(4)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    loader = torch.utils.data.DataLoader(
        Signals(), batch_size=BATCH_SIZE, num_workers=WORKERS
    )
    model.fit(loader, epochs=5, verbose=0)
