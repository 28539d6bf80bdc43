"""PyDatasets of our own around the user's, for a trial's process (this module loads Keras)."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any

import keras


class Window(keras.utils.PyDataset):  # type: ignore[misc]  # Keras ships no types
    """A PyDataset with another length: shorter or longer (it starts over), its full batches only.

    It keeps the workers and the queue of the dataset behind it, counts the batches made, and reports what `__getitem__`
    raises. Ending an epoch by length rather than by `stop_training` leaves no enqueuer behind.
    """

    def __init__(self, dataset: Any, length: int, report_error: Callable[[BaseException], None]) -> None:
        super().__init__(
            workers=dataset.workers,
            use_multiprocessing=dataset.use_multiprocessing,
            max_queue_size=dataset.max_queue_size,
        )
        self._dataset, self._length, self._report_error = dataset, length, report_error
        whole = dataset.num_batches
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
        self._call(self._dataset.on_epoch_begin)

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


class Repeated(keras.utils.PyDataset):  # type: ignore[misc]  # Keras ships no types
    """The same batches again and again: a pipeline that costs next to nothing."""

    def __init__(self, batches: Sequence[tuple[Any, ...]], length: int) -> None:
        super().__init__()
        self._batches, self._length = batches, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return self._batches[index % len(self._batches)]
