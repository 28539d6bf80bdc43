"""`tf.data`: a factory returns a `tf.data.Dataset`; its knobs are those that the factory takes.

`batch_size` goes to `batch`, `num_parallel_calls` (or `workers`) to `map`, `prefetch` (or `max_queue_size`) to `prefetch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

from autofit.errors import UnsupportedInputError
from autofit.records.trial import FitConfig
from autofit.workload.inputs.batch import checked, first_of
from autofit.workload.inputs.fit_input import FitInput
from autofit.workload.inputs.prebuilt import is_tfdata


class TfData(FitInput):
    """The user's `tf.data.Dataset` under one config, its full batches only, as many as are wanted."""

    kind: ClassVar[str] = "tf.data"
    autotunes: ClassVar[bool] = True

    def __init__(
        self, data: Any, config: FitConfig, report_error: Callable[[BaseException], None], reopen: Callable[[], Any] | None
    ) -> None:
        self._data, self.applied = data, replace(config, batch_size=None)
        source = "the tf.data.Dataset"
        self._keep_first(lambda: first_of(iter(data), source), source, _as_arrays)
        length = int(data.cardinality())
        self._length = length if length >= 0 else None

    @staticmethod
    def recognises(data: Any) -> bool:
        """Whether `data` is a `tf.data.Dataset`."""
        return is_tfdata(data)

    def sample_count(self) -> int | None:
        """Batches times samples a batch; None if the dataset does not know its length."""
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

    def _full_batches(self) -> Any:
        """The dataset without its last batch if that may be partial; a dataset of unknown length is filtered."""
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
