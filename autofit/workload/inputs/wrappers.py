"""A dataset that wraps the user's, whichever Keras it is for; no Keras is loaded."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any


class DatasetProxy:
    """A dataset with another length, shorter or longer (it starts over), that has full batches only.

    It counts the batches made, and reports what `__getitem__` raises. An epoch that ends by its length, unlike one that
    `stop_training` ends, leaves no enqueuer behind.
    """

    _dataset: Any
    _length: int
    _report_error: Callable[[BaseException], None]
    _full: int | None

    def wrap(self, dataset: Any, count: int | None, length: int, report_error: Callable[[BaseException], None]) -> None:
        """Wrap a dataset of `count` batches (None: endless) as one of `length` batches."""
        self._dataset, self._length, self._report_error = dataset, length, report_error
        self._full = None if count is None else max(1, count - 1)  # the last batch may be partial
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
        """Forward the call; report what it raises."""
        self._call(getattr(self._dataset, "on_epoch_begin", lambda: None))

    def on_epoch_end(self) -> None:
        """Forward the call; report what it raises."""
        self._call(self._dataset.on_epoch_end)

    def batches_made(self) -> int:
        """How many batches the wrapped dataset has made, in all threads and processes."""
        return int(self._made.value)

    def _call(self, method: Callable[[], None]) -> None:
        try:
            method()
        except BaseException as error:
            self._report_error(error)
            raise
