"""What the datasets of our own do that stand around the user's, whichever Keras they are for. Pure Python."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any


class DatasetProxy:
    """A dataset with another length: shorter or longer (it starts over), its full batches only.

    It counts the batches made, and reports what `__getitem__` raises. Ending an epoch by length rather than by
    `stop_training` leaves no enqueuer behind.
    """

    _dataset: Any
    _length: int
    _report_error: Callable[[BaseException], None]
    _full: int | None

    def pass_on(self, dataset: Any, whole: int | None, length: int, report_error: Callable[[BaseException], None]) -> None:
        """Stand before a dataset of so many batches (None: endless), as one of `length`."""
        self._dataset, self._length, self._report_error = dataset, length, report_error
        self._full = None if whole is None else max(1, whole - 1)  # the last batch may be a part
        self._made = multiprocessing.Value("q", 0)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        try:
            batch = self._dataset[index if self._full is None else index % self._full]
        except BaseException as error:
            self._report_error(error)
            raise
        with self._made.get_lock():
            self._made.value += 1
        return batch

    def on_epoch_begin(self) -> None:
        """Pass it on, errors reported."""
        self._call(getattr(self._dataset, "on_epoch_begin", lambda: None))

    def on_epoch_end(self) -> None:
        """Pass it on, errors reported."""
        self._call(self._dataset.on_epoch_end)

    def batches_made(self) -> int:
        """How many batches came out of the dataset behind, in all threads and processes."""
        return int(self._made.value)

    def _call(self, method: Callable[[], None]) -> None:
        try:
            method()
        except BaseException as error:
            self._report_error(error)
            raise


class RepeatedBatches:
    """The same batches again and again: a pipeline that costs next to nothing.

    Keras takes for fixed whatever dimension the first two batches have in common (Keras 3.15, `PyDatasetAdapter`): where
    batches differ in shape, `opening` are two that do, and come first, once.
    """

    _opening: Sequence[tuple[Any, ...]]
    _batches: Sequence[tuple[Any, ...]]
    _length: int

    def repeat(self, batches: Sequence[tuple[Any, ...]], length: int, opening: Sequence[tuple[Any, ...]]) -> None:
        """Give the batches in turn, as a dataset of so many."""
        self._batches, self._length, self._opening = batches, length, opening

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return self._opening[index] if index < len(self._opening) else self._batches[index % len(self._batches)]
