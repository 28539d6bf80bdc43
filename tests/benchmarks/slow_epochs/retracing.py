"""Batches of ever another length, for each of which JAX compiles the step anew."""

import os
import random

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np

BATCH_SIZE = 32
TEXTS = 60 * 32


class Texts(keras.utils.PyDataset):
    def __init__(self, batch_size):
        super().__init__()
        self.batch_size = batch_size

    def __len__(self):
        return TEXTS // self.batch_size

    def __getitem__(self, index):
        length = random.randrange(20, 2000)
        x = np.arange(self.batch_size * length).reshape(-1, length) % 1000
        return x, np.arange(self.batch_size) % 2


if __name__ == "__main__":
    words = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(1000, 16)(words)
    x = keras.layers.Conv1D(16, 3, padding="same", activation="relu")(x)
    x = keras.layers.GlobalAveragePooling1D()(x)
    model = keras.Model(words, keras.layers.Dense(1)(x))
    model.compile("adam", "mse")
    model.fit(Texts(BATCH_SIZE), epochs=3, verbose=0)
