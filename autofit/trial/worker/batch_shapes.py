"""Batches that differ in shape, as padded text does: the longest decides what an epoch needs of memory, not the usual one.

The describing trial looks for the longest and the shortest batch and keeps them in the workload's folder; every other trial
trains on both, made as large as its batch size says.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autofit.workload.inputs.batch import leaves, mapped

_FILE = "lengths.pickle"
_FEWEST_BATCHES, _FEWEST_SECONDS = 16, 2.0  # for so long batches of one shape are looked at before they are believed
_SECONDS = 30.0

OPENS_ALIKE = (
    "batches differ in shape, but the first two do not: Keras takes their shape for fixed and may fail on the others "
    "(TypeError: generator yielded an element of shape ...). Let the first two differ, or use tf.data"
)


@dataclass(frozen=True)
class BatchShapes:
    """The batches with the most and the fewest bytes a sample, of `count` that were looked at (`all` of them, or not).

    `opens_alike` says that the first two have one shape, though others have another.
    """

    longest: tuple[Any, ...]
    shortest: tuple[Any, ...]
    count: int
    all: bool
    opens_alike: bool

    def __str__(self) -> str:
        of = f"all {self.count}" if self.all else f"the first {self.count}"
        return f"batches differ in shape; each trial trains on the longest of {of} that were looked at, too"

    def resized(self, samples: int) -> list[tuple[Any, ...]]:
        """The longest and the shortest, of so many samples each."""
        return [resized(batch, samples) for batch in (self.longest, self.shortest)]

    def save(self, folder: Path) -> None:
        """Keep them for the trials to come."""
        (folder / _FILE).write_bytes(pickle.dumps(self))


def load(folder: Path) -> BatchShapes | None:
    """What the describing trial found; None where all batches have one shape."""
    path = folder / _FILE
    return pickle.loads(path.read_bytes()) if path.exists() else None


def scan(batches: Iterator[tuple[Any, ...]]) -> BatchShapes | None:
    """The longest and the shortest batch; None where all have one shape, or those of the first seconds do."""
    longest = shortest = None
    first = second = None
    count, started, ended = 0, time.perf_counter(), False
    while time.perf_counter() - started < _SECONDS:
        batch = next(batches, None)
        if batch is None:
            ended = True
            break
        count += 1
        first, second = (batch, None) if first is None else (first, second or batch)
        longest = batch if longest is None or sample_bytes(batch) > sample_bytes(longest) else longest
        shortest = batch if shortest is None or sample_bytes(batch) < sample_bytes(shortest) else shortest
        enough = count >= _FEWEST_BATCHES and time.perf_counter() - started > _FEWEST_SECONDS
        if longest is shortest and enough:
            return None
    if longest is None or shortest is None or longest is shortest:
        return None
    alike = second is not None and _shapes(first) == _shapes(second)
    return BatchShapes(longest, shortest, count, ended, alike)


def sample_bytes(batch: tuple[Any, ...]) -> float:
    """Bytes a sample."""
    return float(sum(leaf.nbytes / max(1, len(leaf)) for leaf in leaves(batch)))


def resized(batch: tuple[Any, ...], samples: int) -> tuple[Any, ...]:
    """A batch of so many samples, those of the given one again and again."""
    made = mapped(batch, lambda leaf: np.take(leaf, np.arange(samples) % len(leaf), axis=0))
    return tuple(made)


def _shapes(batch: Any) -> list[tuple[int, ...]]:
    return [leaf.shape[1:] for leaf in leaves(batch)]
