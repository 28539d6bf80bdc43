"""Text that Python hashes word by word, which holds the interpreter's lock."""

import keras
import numpy as np

BATCH_SIZE = 32
WORKERS = 1
PROCESSES = False
QUEUE = 10
STEPS = 1
TEXTS = 4800
BUCKETS = 2000
WORDS = [f"word{number}" for number in range(700)]


class Texts(keras.utils.PyDataset):
    def __init__(self, batch_size, **kwargs):
        super().__init__(**kwargs)
        self.batch_size = batch_size

    def __len__(self):
        return TEXTS // self.batch_size

    def __getitem__(self, index):
        x = np.zeros((self.batch_size, BUCKETS), "float32")
        for row in range(self.batch_size):
            for place, word in enumerate(WORDS):
                code = 7
                for letter in word:
                    code = (code * 31 + ord(letter) + place) % BUCKETS
                x[row, code] += 1
        return x, np.arange(self.batch_size) % 2


if __name__ == "__main__":
    model = keras.Sequential(
        [keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse", steps_per_execution=STEPS)
    texts = Texts(
        BATCH_SIZE,
        workers=WORKERS,
        use_multiprocessing=PROCESSES,
        max_queue_size=QUEUE,
    )
    model.fit(texts, epochs=5, verbose=0)
