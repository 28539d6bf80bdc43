"""Keras's own interface for data, the class `DataAdapter`: a factory returns an object of a class derived from it.

Keras asks it for what the backend iterates: a NumPy or JAX iterator, a `tf.data.Dataset`, or a torch DataLoader.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

from autofit.workload.inputs.fit_input import FitInput, call_reported, repeated
from autofit.workload.inputs.knobs import is_adapter


class Adapter(FitInput):
    """The user's DataAdapter with one config applied; `fit` receives an adapter with the required number of batches."""

    kind: ClassVar[str] = "DataAdapter"
    source: ClassVar[str] = "the DataAdapter"
    recognises = staticmethod(is_adapter)

    def _open(self) -> None:
        self.applied, self._length = replace(self._config, batch_size=None), self._data.num_batches
        self._keep_first(self._epoch())

    def fit_arguments(self, steps: int) -> dict[str, Any]:
        base = [base for base in type(self._data).__mro__ if base.__name__ == self.kind][-1]  # the last is Keras's class
        return {"x": _full_batches_class(base)(self, self._data, steps)}

    def validation_arguments(self, steps: int) -> dict[str, Any]:
        return {"validation_data": self._data, "validation_steps": min(steps, self._length or steps)}

    def _epoch(self) -> Iterable[Any]:
        made: Iterable[Any] = call_reported(self._report_error, self._data.get_numpy_iterator)
        return made

    def full_batches(self, method: str) -> Iterator[Any]:
        """Return the full batches of an epoch from what a method of the user's adapter returns."""
        return self.full_batches_of(getattr(self._data, method))


class _Iterated:
    """What Keras iterates once an epoch."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        batches: Iterator[Any] = self._make()
        return batches


@functools.cache
def _full_batches_class(base: type) -> type:
    """Return a class of adapters that hand out `steps` full batches of another adapter; `base` is Keras's class."""

    class FullBatches(base):  # type: ignore[misc]  # known only when Keras is loaded
        num_batches = property(lambda self: self._steps)
        batch_size = property(lambda self: self._given.batch_size)
        has_partial_batch = property(lambda self: False)
        partial_batch_size = property(lambda self: None)

        def __init__(self, data: Adapter, given: Any, steps: int) -> None:
            self._data, self._given, self._steps = data, given, steps

        def get_numpy_iterator(self) -> Any:
            return self._repeated("get_numpy_iterator")

        def get_jax_iterator(self) -> Any:
            return self._repeated("get_jax_iterator")

        def get_torch_dataloader(self) -> Any:
            return self._repeated("get_torch_dataloader")

        def get_tf_dataset(self) -> Any:
            whole = self._given.get_tf_dataset()
            full = whole.take(self._given.num_batches - 1) if self._given.has_partial_batch else whole
            return full.repeat().take(self._steps)

        def on_epoch_begin(self) -> None:
            self._given.on_epoch_begin()

        def on_epoch_end(self) -> None:
            self._given.on_epoch_end()

        def _repeated(self, method: str) -> _Iterated:
            return _Iterated(lambda: repeated(functools.partial(self._data.full_batches, method), self._steps))

    return FullBatches
