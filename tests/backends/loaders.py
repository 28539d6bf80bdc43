"""torch DataLoaders for tests with real trials; nothing of torch is loaded with this module."""

import os
import pathlib

import numpy as np

from tests.workloads import PIXELS, misbehave

ROWS = 96


class Pictures:
    """Pictures of ones; from the twenty-fifth on it misbehaves as it is told."""

    def __init__(self, case=None, rows=ROWS):
        self.case, self.rows = case, rows

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        if index >= ROWS // 4 and self.case is not None:
            misbehave(self.case)
        return np.ones((PIXELS, PIXELS, 3), "float32"), np.ones(1, "float32")


def loader(
    batch_size=8, num_workers=0, prefetch_factor=None, persistent_workers=False, case=None, rows=ROWS, start_method=None
):
    from torch.utils.data import DataLoader

    return DataLoader(
        Pictures(case, rows),
        batch_size=batch_size,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        persistent_workers=persistent_workers,
        multiprocessing_context=start_method if num_workers else None,
    )


def of_one_size(batch_size=8, num_workers=0, prefetch_factor=None):
    return loader(8, num_workers, prefetch_factor)


def stream(batch_size=8, num_workers=0, prefetch_factor=None, length=None):
    """The same as a stream, which tells its length if it is given one."""
    from torch.utils.data import DataLoader, IterableDataset

    class Stream(IterableDataset):
        def __iter__(self):
            pictures = Pictures()
            return (pictures[index] for index in range(length or 10 * ROWS))

    if length is not None:
        Stream.__len__ = lambda self: length
    return DataLoader(Stream(), batch_size=batch_size, num_workers=num_workers, prefetch_factor=prefetch_factor)


def counted_stream(batch_size=8, num_workers=0, prefetch_factor=None):
    return stream(batch_size, num_workers, prefetch_factor, length=500 * ROWS)


def forgets_its_workers(batch_size=8, num_workers=0, prefetch_factor=None):
    return loader(batch_size)


def witnessed(batch_size=8, num_workers=0, prefetch_factor=None, persistent_workers=False):
    """A loader whose batches are written down in the file that WITNESS names."""
    from torch.utils.data import DataLoader, Dataset, default_collate

    class Rows(Dataset):
        def __len__(self):
            return 4000

        def __getitem__(self, index):
            return np.ones(4, "float32"), np.ones(1, "float32")

    def collate(samples):
        if path := os.environ.get("WITNESS"):
            with pathlib.Path(path).open("a") as file:
                file.write(f"{len(samples)} {os.getpid()}\n")
        return default_collate(samples)

    return DataLoader(
        Rows(),
        batch_size=batch_size,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        persistent_workers=persistent_workers,
        collate_fn=collate,
    )
