"""`tf.data` as input: a factory returns a `tf.data.Dataset`; its knobs are parameters of the factory.

The factory passes `batch_size` to the dataset's `batch`, `num_parallel_calls` (or `workers`) to `map`, and `prefetch` (or
`max_queue_size`) to `prefetch`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from autofit.workload.inputs.batch import leaves, length_of
from autofit.workload.inputs.fit_input import FitInput
from autofit.workload.inputs.knobs import is_tfdata


class TfData(FitInput):
    """The user's `tf.data.Dataset` with one config applied; `fit` receives one full batch for each step."""

    kind: ClassVar[str] = "tf.data"
    source: ClassVar[str] = "the tf.data.Dataset"
    autotunes: ClassVar[bool] = True
    recognises = staticmethod(is_tfdata)

    def _open(self) -> None:
        import tensorflow as tf  # heavy: must stay out of the parent

        self.applied = replace(self._config, batch_size=None)
        self._keep_first(self._data)
        length = int(self._data.cardinality())
        self._length = length if length >= 0 else None
        # all batches have one size if the dataset declares the first dimension of each tensor, as with `drop_remainder`
        shapes = [spec.shape for spec in tf.nest.flatten(self._data.element_spec) if hasattr(spec, "shape")]
        self.of_fixed_size = all(shape.rank is not None and (shape.rank == 0 or shape[0] is not None) for shape in shapes)

    @property
    def epoch_batches(self) -> int | None:
        """As `FitInput` says; the last batch may be partial."""
        return self._length if self._length is None or self._all_full() else max(1, self._length - 1)

    def fit_arguments(self, steps: int) -> dict[str, Any]:
        return {"x": self._full_batches().repeat().take(steps)}

    def validation_arguments(self, steps: int) -> dict[str, Any]:
        return {"validation_data": self._data.take(steps)}

    def _epoch(self) -> Any:
        return self._data

    def _all_full(self) -> bool:
        """Return whether all batches have one size; for graphs, the first axis counts nodes."""
        return self.of_fixed_size or length_of(leaves(self._batch)[0]) != self.batch_samples

    def _full_batches(self) -> Any:
        import tensorflow as tf  # heavy: must stay out of the parent

        if self._all_full():
            return self._data
        if self.epoch_batches is not None:
            return self._data.take(self.epoch_batches)
        return self._data.filter(lambda *batch: tf.equal(tf.shape(leaves(batch)[0])[0], self.batch_samples))
