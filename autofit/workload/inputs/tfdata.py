"""`tf.data`: a factory that returns a `tf.data.Dataset`; its knobs are whatever the factory takes.

`batch_size` goes to `batch`, `num_parallel_calls` (or `workers`) to `map`, `prefetch` (or `max_queue_size`) to `prefetch`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from autofit.errors import UnsupportedInputError, UsageError
from autofit.records.trial import FitConfig
from autofit.workload.inputs.batch import checked, first_leaf
from autofit.workload.inputs.prebuilt import is_tfdata


class TfData:
    """The user's `tf.data.Dataset` under one config, its full batches only, as many as are wanted.

    Args:
        data: what the user's factory returned.
        config: the knobs that the factory was given.
        report_error: not used: TensorFlow passes on what the user's functions raise.
        again: not used: a dataset begins anew by itself.

    Raises:
        UsageError: the dataset is empty.
        UnsupportedInputError: a batch is not (x, y) or (x, y, sample_weight) of dense tensors.
        Exception: what the user's functions raise for the first batch.
    """

    kind: ClassVar[str] = "tf.data"
    fit_knobs: ClassVar[tuple[str, ...]] = ()
    ends_by_itself: ClassVar[bool] = True

    def __init__(
        self, data: Any, config: FitConfig, report_error: Callable[[BaseException], None], again: Callable[[], Any] | None
    ) -> None:
        self._data, self.applied = data, replace(config, batch_size=None)
        started = time.perf_counter()
        first = next(iter(data), None)
        self.batch_seconds = time.perf_counter() - started
        if first is None:
            raise UsageError("the tf.data.Dataset is empty: there is no batch to train on")
        self._batch = checked(_as_arrays(first), "the tf.data.Dataset")
        self.batch_samples = len(first_leaf(self._batch))
        length = int(data.cardinality())
        self._length = length if length >= 0 else None

    @staticmethod
    def recognises(data: Any) -> bool:
        """Whether `data` is a `tf.data.Dataset`."""
        return is_tfdata(data)

    def knobs(self, named: Mapping[str, str]) -> dict[str, str]:
        """What the factory takes."""
        return dict(named)

    def batch(self) -> tuple[Any, ...]:
        """The first batch."""
        return self._batch

    def sample_count(self) -> int | None:
        """Batches times samples a batch (the last batch counted as full); None where the dataset does not know."""
        return None if self._length is None else self._length * self.batch_samples

    def fit_arguments(self, steps: int) -> dict[str, Any]:
        """One epoch of so many steps, every batch a full one."""
        return {"x": self._full_batches().repeat().take(steps)}

    def validation_arguments(self, steps: int) -> dict[str, Any]:
        """So many steps at the most, and no more than the dataset has."""
        return {"validation_data": self._data.take(steps)}

    def look(self) -> Iterator[tuple[Any, ...]]:
        """Every batch in turn."""
        return (checked(_as_arrays(batch), "the tf.data.Dataset") for batch in self._data)

    def batches_made(self) -> int | None:
        """None: what `prefetch` holds cannot be seen from outside."""
        return None

    def _full_batches(self) -> Any:
        """The dataset without its last batch where that may be a part; one whose length is unknown is filtered."""
        import tensorflow as tf  # heavy: must stay out of the parent

        if all(spec.shape[0] is not None for spec in tf.nest.flatten(self._data.element_spec)):
            return self._data
        if self._length is not None:
            return self._data.take(max(1, self._length - 1))
        return self._data.filter(lambda *batch: tf.equal(tf.shape(tf.nest.flatten(batch)[0])[0], self.batch_samples))


def _as_arrays(nest: Any) -> Any:
    """Tensors as NumPy arrays, nests kept."""
    if isinstance(nest, dict):
        return {key: _as_arrays(value) for key, value in nest.items()}
    if isinstance(nest, tuple | list):
        return tuple(_as_arrays(value) for value in nest)
    kind = type(nest).__name__
    if not hasattr(nest, "numpy") or kind == "RaggedTensor":
        raise UnsupportedInputError(
            f"the tf.data.Dataset gave a {kind}; autofit takes dense tensors: pad ragged ones, as padded_batch does"
        )
    return nest.numpy()
