"""Batches that stand for an epoch: the longest and the shortest.

Batches may differ in shape, as in padded text: the longest determines the memory that an epoch
needs. The describing trial finds the longest and the shortest batch and saves them in the
workload's folder. Every other trial trains on both, resized to its batch size.
"""

from __future__ import annotations

import itertools
import math
import pickle
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autofit.errors import UsageError
from autofit.trial.folder import explained_errors
from autofit.workload.inputs.batch import (
    bytes_of,
    is_ragged,
    is_sparse,
    leaves,
    length_of,
    mapped,
)

_FILE = "lengths.pickle"
# to read before batches of the same shape count as uniform
_FEWEST_BATCHES = 16
_FEWEST_SECONDS = 2.0
# of batches that have not the size of the first: fewer are the last ones of epochs
_SEVERAL_SHARE = 0.1
_SCAN_SECONDS = 30.0  # longest scan of batches that differ in shape


@dataclass(frozen=True)
class BatchShapes:
    """The batches with the most and the fewest bytes per sample.

    If batches differ in size, `longest` is the one with the most bytes.
    """

    longest: Any
    shortest: Any
    count: int  # batches that were read
    # the batch size for which full ones have several sizes; None if they have one
    asked: int | None = None

    def __str__(self) -> str:
        differ = "differ in shape"
        if self.asked is not None:
            differ = "have several sizes, and rates count their samples"
        return (
            f"batches {differ}; each trial also trains on the longest of the first {self.count} "
            "batches"
        )

    def resized(self, samples: int) -> list[Any]:
        """Return the longest and the shortest batch for a batch size: samples are repeated or
        dropped.
        """

        def of_leaf(leaf: Any) -> Any:
            if is_ragged(leaf) or is_sparse(leaf) or leaf.ndim == 0:
                return leaf
            length = len(leaf)
            size = samples
            if self.asked is not None:
                size = math.ceil(length * samples / self.asked)
            return np.take(leaf, np.arange(size) % length, axis=0)

        return [mapped(batch, of_leaf) for batch in (self.longest, self.shortest)]

    def save(self, folder: Path) -> None:
        with explained_errors(folder, UsageError):
            (folder / _FILE).write_bytes(pickle.dumps(self))


def load(folder: Path) -> BatchShapes | None:
    """Load the batches that the describing trial saved; return None if they have one shape."""
    path = folder / _FILE
    return pickle.loads(path.read_bytes()) if path.exists() else None


def scan(batches: Iterator[Any], asked: int | None = None) -> BatchShapes | None:
    """Find the longest and the shortest batch; return None if those of the first seconds have one
    shape.
    """
    started = time.perf_counter()
    first = next(batches, None)
    if first is None:
        return None
    longest = shortest = largest = first
    sizes: list[int] = []
    for batch in itertools.chain([first], batches):
        longest = max(longest, batch, key=sample_bytes)
        shortest = min(shortest, batch, key=sample_bytes)
        largest = max(largest, batch, key=bytes_of)
        sizes.append(length_of(leaves(batch)[0]))
        seconds = time.perf_counter() - started
        is_enough = len(sizes) >= _FEWEST_BATCHES and seconds > _FEWEST_SECONDS
        if (longest is shortest and is_enough) or seconds >= _SCAN_SECONDS:
            break
    count = len(sizes)
    others = sum(size != sizes[0] for size in sizes[:-1])
    if asked and others > _SEVERAL_SHARE * count:
        return BatchShapes(largest, shortest, count, asked)
    return None if longest is shortest else BatchShapes(longest, shortest, count)


def sample_bytes(batch: Any) -> float:
    """Return the bytes per sample of a batch."""
    total = 0.0
    for leaf in leaves(batch):
        total += bytes_of(leaf) / max(1, length_of(leaf))
    return total
