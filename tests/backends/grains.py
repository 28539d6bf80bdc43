"""grain datasets for tests with real trials.

Nothing of grain or Keras is loaded with this module.
"""

import os

import numpy as np

from tests.contracts import rows

ROWS, PIXELS = 96, 64


class Pictures:
    """Pictures of ones. Reading one writes down the process that reads it."""

    def __init__(self, witness):
        self.witness = witness

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        rows.write(self.witness, os.getpid())
        return np.ones((PIXELS, PIXELS, 3), "float32"), np.ones(1, "float32")


def _grain():
    import grain
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # grain reads flags before it starts processes
    return grain


def mapped(batch_size=8, witness=None):
    return _grain().MapDataset.source(Pictures(witness)).batch(batch_size)


def threads(batch_size=8, num_threads=2, prefetch_buffer_size=3, witness=None):
    return mapped(batch_size, witness).to_iter_dataset(
        _grain().ReadOptions(num_threads, prefetch_buffer_size)
    )


def loader(batch_size=8, num_workers=0, per_worker_buffer_size=1, witness=None):
    grain = _grain()
    # many epochs in one: each epoch of `fit` starts the processes again
    sampler = grain.samplers.IndexSampler(
        ROWS, grain.sharding.NoSharding(), shuffle=True, num_epochs=50, seed=1
    )
    return grain.DataLoader(
        data_source=Pictures(witness),
        sampler=sampler,
        operations=[grain.transforms.Batch(batch_size)],
        worker_count=num_workers,
        worker_buffer_size=per_worker_buffer_size,
    )
