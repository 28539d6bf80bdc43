"""torch DataLoaders for tests with real trials; nothing of torch is loaded with this module."""

import os

import numpy as np

from tests.contracts.rows import write
from tests.workloads import PIXELS, misbehave

ROWS = 96


class Pictures:
    """Pictures of ones; from the twenty-fifth on it misbehaves as it is told.

    WITNESS gets the process of each.
    """

    def __init__(self, case=None, count=ROWS, shape=(PIXELS, PIXELS, 3)):
        self.case = case
        self.count = count
        self.shape = shape

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index >= ROWS // 4 and self.case is not None:
            misbehave(self.case)
        write(os.environ.get("WITNESS"), os.getpid())
        return np.ones(self.shape, "float32"), np.ones(1, "float32")


def loader(
    batch_size=8,
    num_workers=0,
    prefetch_factor=None,
    persistent_workers=False,
    case=None,
    start_method=None,
    pictures=None,
):
    from torch.utils.data import DataLoader

    return DataLoader(
        pictures or Pictures(case),
        batch_size=batch_size,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        persistent_workers=persistent_workers,
        multiprocessing_context=start_method if num_workers else None,
    )


def rows(batch_size=8, num_workers=0, prefetch_factor=None, persistent_workers=False):
    return loader(
        batch_size,
        num_workers,
        prefetch_factor,
        persistent_workers,
        pictures=Pictures(None, 4000, (4,)),
    )


def of_one_size(batch_size=8, num_workers=0, prefetch_factor=None):
    return loader(8, num_workers, prefetch_factor)


def stream(batch_size=8, num_workers=0, prefetch_factor=None):
    """The same as a stream, which does not tell its length."""
    from torch.utils.data import DataLoader, IterableDataset

    class Stream(IterableDataset):
        def __iter__(self):
            pictures = Pictures()
            return (pictures[index % ROWS] for index in range(10 * ROWS))

    return DataLoader(
        Stream(),
        batch_size=batch_size,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
    )


def forgets_its_workers(batch_size=8, num_workers=0, prefetch_factor=None):
    return loader(batch_size)
