"""`keras.utils.PyDataset`: all knobs are arguments of its constructor (Keras 3 takes none of them in `fit`)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from autofit.errors import UsageError
from autofit.records.trial import FitConfig
from autofit.workload.inputs.batch import checked, first_leaf
from autofit.workload.inputs.prebuilt import is_pydataset

_WORKER_KNOBS = ("workers", "max_queue_size", "use_multiprocessing")


class PyDatasetInput:
    """The user's PyDataset under one config, seen through a window of the wanted length.

    Args:
        data: what the user's factory returned.
        config: the knobs that the factory was given; they must have arrived in the dataset.
        report_error: called with what `__getitem__` raises, in the thread or process where it raises.
        again: not used: a dataset can be read again and again.

    Raises:
        UsageError: the dataset is empty, or did not take over the knobs it was given.
        UnsupportedInputError: a batch is not (x, y) or (x, y, sample_weight) of arrays.
        Exception: what the user's `__getitem__` raises for the first batch.
    """

    kind: ClassVar[str] = "PyDataset"
    fit_knobs: ClassVar[tuple[str, ...]] = ()
    ends_by_itself: ClassVar[bool] = True

    def __init__(
        self, data: Any, config: FitConfig, report_error: Callable[[BaseException], None], again: Callable[[], Any] | None
    ) -> None:
        from autofit.workload.inputs.keras_wrappers import KerasProxy  # loads Keras: must stay out of the parent

        for knob in _WORKER_KNOBS:
            asked, got = getattr(config, knob), getattr(data, knob)
            if asked is not None and asked != got:
                raise UsageError(
                    f"the PyDataset was given {knob}={asked} but has {knob}={got}: "
                    f"its __init__ must pass {knob} on, as in super().__init__(**kwargs)"
                )
        self._data, self._report_error = data, report_error
        self.applied = FitConfig(None, *(getattr(data, knob) for knob in _WORKER_KNOBS))
        self._length = data.num_batches
        if self._length == 0:
            raise UsageError("the PyDataset has length 0: there is no batch to train on")
        self._windows: list[KerasProxy] = []
        started = time.perf_counter()
        self._batch = checked(data[0], "__getitem__(0) of the PyDataset")
        self.batch_seconds = time.perf_counter() - started
        self.batch_samples = len(first_leaf(self._batch))

    @staticmethod
    def recognises(data: Any) -> bool:
        """Whether `data` is a `keras.utils.PyDataset`."""
        return is_pydataset(data)

    def knobs(self, named: Mapping[str, str]) -> dict[str, str]:
        """What the factory takes, but for a queue that no worker fills."""
        dead = "workers" not in named and "use_multiprocessing" not in named and self.applied.workers in (0, 1)
        return {knob: name for knob, name in named.items() if not (dead and knob == "max_queue_size")}

    def batch(self) -> tuple[Any, ...]:
        """The first batch, as `__getitem__(0)` gave it."""
        return self._batch

    def sample_count(self) -> int | None:
        """Batches times samples a batch (the last batch counted as full); None for an endless dataset."""
        return None if self._length is None else self._length * self.batch_samples

    def fit_arguments(self, steps: int) -> dict[str, Any]:
        """One epoch of so many steps."""
        return {"x": self._window(steps)}

    def validation_arguments(self, steps: int) -> dict[str, Any]:
        """So many steps at the most, and no more than the dataset has."""
        return {"validation_data": self._window(steps if self._length is None else min(steps, self._length))}

    def look(self) -> Iterator[tuple[Any, ...]]:
        """Every batch in turn, made here; an endless dataset gives its first ones for ever."""
        indices = itertools.count() if self._length is None else range(self._length)
        return (checked(self._data[index], "the PyDataset") for index in indices)

    def batches_made(self) -> int | None:
        """Batches that `__getitem__` has returned, in all threads and processes."""
        return sum(window.batches_made() for window in self._windows)

    def _window(self, steps: int) -> Any:
        from autofit.workload.inputs.keras_wrappers import KerasProxy  # loads Keras: must stay out of the parent

        self._windows.append(KerasProxy(self._data, steps, self._report_error))
        return self._windows[-1]
