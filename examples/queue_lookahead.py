"""Count the batches that Keras makes ahead of training, and the RAM that they hold.

    python examples/queue_lookahead.py

Training pauses after its tenth step, until no further batch is made.

Measured (2 cores, TensorFlow 2.21):

                       max_queue_size  samples  batches ahead
    Keras 3.15.1                   10    2,944             13
    Keras 3.15.1                    2    1,920              5

Keras makes max_queue_size + 3 batches ahead.
"""

import argparse
import threading
import time

STEPS, BATCH, WORKERS = 10, 128, 2
QUIET_SECONDS = 1.0
RESOLUTIONS = (64, 128, 224, 384)
BATCHES = (32, 128, 512)


def look_ahead(max_queue_size):
    """Pause training after ten steps until no further batch is made.

    Returns (samples made, batches ahead).
    """
    import keras
    import numpy as np

    made = {"batches": 0, "lock": threading.Lock()}

    class Counting(keras.utils.PyDataset):
        def __len__(self):
            return 200

        def __getitem__(self, index):
            with made["lock"]:
                made["batches"] += 1
            return np.zeros((BATCH, 4), "float32"), np.zeros((BATCH, 1), "float32")

    class Pause(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch + 1 == STEPS:
                count, since = -1, time.monotonic()
                while time.monotonic() - since < QUIET_SECONDS:
                    time.sleep(0.05)
                    if made["batches"] != count:
                        count, since = made["batches"], time.monotonic()
                made["at_pause"] = count
                self.model.stop_training = True

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(
        Counting(workers=WORKERS, max_queue_size=max_queue_size),
        verbose=0,
        callbacks=[Pause()],
    )
    return made["at_pause"] * BATCH, made["at_pause"] - STEPS


def main():
    """Count with two queues, then print the bytes."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    import keras

    print(f"{STEPS} steps of {BATCH} trained, {WORKERS} workers; made by then:\n")
    print(f"{'':18} {'max_queue_size':>14} {'samples':>8} {'batches ahead':>14}")
    most = 0
    for queue in (10, 2):
        samples, ahead = look_ahead(queue)
        most = max(most, ahead)
        print(f"{f'Keras {keras.__version__}':18} {queue:14} {samples:8,} {ahead:14}")
    print(f"\nRAM of {most} batches ahead, float32 pictures with three channels:\n")
    print(f"{'':12}" + "".join(f"{f'batch {b}':>12}" for b in BATCHES))
    for pixels in RESOLUTIONS:
        sizes = [most * batch * pixels * pixels * 3 * 4 / 2**30 for batch in BATCHES]
        print(
            f"{pixels:4} x {pixels:<4} " + "".join(f"{size:8.2f} GiB" for size in sizes)
        )


if __name__ == "__main__":
    main()
