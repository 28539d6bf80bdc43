"""`tf.data` as input: a factory returns a `tf.data.Dataset`; its knobs are parameters of the factory.

The factory passes `batch_size` to the dataset's `batch`, `num_parallel_calls` (or `workers`) to `map`, and `prefetch` (or
`max_queue_size`) to `prefetch`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

from autofit.workload.inputs.batch import first_of, leaves, length_of
from autofit.workload.inputs.fit_input import FitInput
from autofit.workload.inputs.knobs import is_tfdata

_SOURCE = "the tf.data.Dataset"
_INFINITE = -1  # tf.data.INFINITE_CARDINALITY


class TfData(FitInput):
    """The user's `tf.data.Dataset` with one config applied; `fit` receives one full batch for each step."""

    kind: ClassVar[str] = "tf.data"
    autotunes: ClassVar[bool] = True
    recognises = staticmethod(is_tfdata)

    def _open(self) -> None:
        self.applied = replace(self._config, batch_size=None)
        self._keep_first(lambda: first_of(iter(self._data), _SOURCE), _SOURCE, self._config.batch_size)
        length = int(self._data.cardinality())
        self._length = length if length >= 0 else None
        self.of_fixed_size = _has_fixed_size(self._data)

    def sample_count(self) -> int | None:
        return None if self._length is None else self._length * self.batch_samples

    def last_batch_samples(self) -> int | None:
        return self.batch_samples if self.of_fixed_size or int(self._data.cardinality()) == _INFINITE else None

    def fit_arguments(self, steps: int) -> dict[str, Any]:
        return {"x": self._full_batches().repeat().take(steps)}

    def validation_arguments(self, steps: int) -> dict[str, Any]:
        return {"validation_data": self._data.take(steps)}

    def look(self) -> Iterator[Any]:
        return (self._as_batch(batch, _SOURCE) for batch in self._data)

    def _full_batches(self) -> Any:
        """Return the dataset without partial batches: drop the last batch if the length is known, else filter by size."""
        import tensorflow as tf  # heavy: must stay out of the parent

        first = leaves(self._batch)[0]
        if self.of_fixed_size or length_of(first) != self.batch_samples:  # for graphs the first axis counts nodes
            return self._data
        if self._length is not None:
            return self._data.take(max(1, self._length - 1))
        return self._data.filter(lambda *batch: tf.equal(_length_of(leaves(batch)[0]), self.batch_samples))


def _has_fixed_size(data: Any) -> bool:
    """Return whether the dataset declares the length of the first axis of each tensor, as it does with `drop_remainder`."""
    import tensorflow as tf  # heavy: must stay out of the parent

    shapes = [spec.shape for spec in tf.nest.flatten(data.element_spec) if hasattr(spec, "shape")]
    return all(shape.rank is not None and (shape.rank == 0 or shape[0] is not None) for shape in shapes)


def _length_of(tensor: Any) -> Any:
    """Return the number of entries along the first axis of a tensor, as a tensor."""
    import tensorflow as tf  # heavy: must stay out of the parent

    if hasattr(tensor, "nrows"):
        return tensor.nrows(out_type=tf.int32)
    shape = tf.cast(tensor.dense_shape, tf.int32) if hasattr(tensor, "dense_shape") else tf.shape(tensor)
    return shape[0]
