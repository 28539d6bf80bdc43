"""`tf_keras.utils.Sequence` (Keras 2): the batch size is the factory's, all other knobs are arguments of `fit`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from autofit.errors import UsageError
from autofit.records.trial import FitConfig
from autofit.workload.inputs.batch import checked, first_leaf
from autofit.workload.inputs.prebuilt import has_base

if TYPE_CHECKING:
    from autofit.workload.inputs.tf_keras_wrappers import SequenceProxy


class SequenceInput:
    """The user's Sequence under one config, seen through a window of the wanted length.

    Args:
        data: what the user's factory returned.
        config: the knobs, those of `fit` included.
        report_error: called with what `__getitem__` raises, in the thread or process where it raises.
        again: not used: a Sequence can be read again and again.

    Raises:
        UsageError: the Sequence is empty.
        UnsupportedInputError: a batch is not (x, y) or (x, y, sample_weight) of arrays.
        Exception: what the user's `__getitem__` raises for the first batch.
    """

    kind: ClassVar[str] = "Sequence"
    fit_knobs: ClassVar[tuple[str, ...]] = ("workers", "max_queue_size", "use_multiprocessing")
    ends_by_itself: ClassVar[bool] = True

    def __init__(
        self, data: Any, config: FitConfig, report_error: Callable[[BaseException], None], again: Callable[[], Any] | None
    ) -> None:
        self._data, self._report_error = data, report_error
        self._length = len(data)
        if self._length == 0:
            raise UsageError("the Sequence has length 0: there is no batch to train on")
        self.applied = replace(config, batch_size=None)
        self._windows: list[SequenceProxy] = []
        started = time.perf_counter()
        self._batch = checked(data[0], "__getitem__(0) of the Sequence")
        self.batch_seconds = time.perf_counter() - started
        self.batch_samples = len(first_leaf(self._batch))

    @staticmethod
    def recognises(data: Any) -> bool:
        """Whether `data` is a `tf_keras.utils.Sequence`."""
        return has_base(data, "tf_keras", "Sequence")

    def knobs(self, named: Mapping[str, str]) -> dict[str, str]:
        """The factory's batch size, and what `fit` takes."""
        return {**{k: v for k, v in named.items() if k == "batch_size"}, **{knob: knob for knob in self.fit_knobs}}

    def batch(self) -> tuple[Any, ...]:
        """The first batch, as `__getitem__(0)` gave it."""
        return self._batch

    def sample_count(self) -> int | None:
        """Batches times samples a batch (the last batch counted as full)."""
        return self._length * self.batch_samples

    def fit_arguments(self, steps: int) -> dict[str, Any]:
        """One epoch of so many steps."""
        given = {knob: getattr(self.applied, knob) for knob in self.fit_knobs}
        return {"x": self._window(steps), **{knob: value for knob, value in given.items() if value is not None}}

    def validation_arguments(self, steps: int) -> dict[str, Any]:
        """So many steps at the most, and no more than the Sequence has."""
        return {"validation_data": self._window(min(steps, self._length))}

    def look(self) -> Iterator[tuple[Any, ...]]:
        """Every batch in turn, made here."""
        return (checked(self._data[index], "the Sequence") for index in range(self._length))

    def batches_made(self) -> int | None:
        """Batches that `__getitem__` has returned, in all threads and processes."""
        return sum(window.batches_made() for window in self._windows)

    def _window(self, steps: int) -> Any:
        from autofit.workload.inputs.tf_keras_wrappers import SequenceProxy  # loads tf_keras: must stay out of the parent

        self._windows.append(SequenceProxy(self._data, steps, self._report_error))
        return self._windows[-1]
