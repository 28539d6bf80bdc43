"""Arrays as input; their only knob is `batch_size`, an argument of `fit`."""

from __future__ import annotations

import itertools
import math
import mmap
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from autofit.errors import UsageError
from autofit.records.trial import FitConfig
from autofit.workload.inputs.batch import (
    bytes_of,
    components,
    dense,
    is_array,
    is_ragged,
    is_sparse,
    leaves,
    length_of,
    mapped,
)
from autofit.workload.inputs.fit_input import ArrayBytes, FitInput, packed

_MOST_PARTS = 3  # x, y and sample weights
_PIPELINE_BYTES = 32 * 2**20  # size of the arrays that time the pipeline alone: more rows give the same rate
_FEWEST_PIPELINE_BATCHES = 4


class Arrays(FitInput):
    """Arrays in memory as `fit` takes them: x, (x,), (x, y) or (x, y, sample_weight); each part is a nest of arrays."""

    kind: ClassVar[str] = "arrays"
    fit_knobs: ClassVar[tuple[str, ...]] = ("batch_size",)
    ends_by_itself: ClassVar[bool] = False
    _length: int  # without a partial batch
    of_fixed_size = True  # Keras knows the size of full batches (Keras 3.15 `ArrayDataAdapter`)

    def _open(self) -> None:
        import keras  # heavy: must stay out of the parent

        lengths = sorted({length_of(leaf) for leaf in leaves(self._data)})
        if len(lengths) != 1 or lengths[0] == 0:
            raise UsageError(
                f"the arrays have these numbers of samples: {lengths}. Give arrays with the same number, at least one"
            )
        is_tuple = isinstance(self._data, tuple | list)
        self._parts = tuple(self._data) if is_tuple else (self._data,)
        self.part_count = len(self._parts) if is_tuple else 0
        self._count = lengths[0]
        self.one_fit = keras.backend.backend() == "tensorflow"  # there, `fit` turns whole arrays into tensors
        self.batch_samples = min(self._config.batch_size or 32, self._count)
        self._length = self._count // self.batch_samples
        self.applied = FitConfig(batch_size=self.batch_samples)

    @staticmethod
    def recognises(data: Any) -> bool:
        parts = tuple(data) if isinstance(data, tuple | list) else (data,)
        return (
            1 <= len(parts) <= _MOST_PARTS
            and bool(leaves(parts[0]))
            and all(is_array(leaf) and len(leaf.shape) > 0 for leaf in leaves(parts))
        )

    def knobs(self, named: Mapping[str, str]) -> dict[str, str]:
        """Return `batch_size`, an argument of `fit`, even if a factory that returns arrays has no parameter for it."""
        return {"batch_size": "batch_size"}

    def batch(self) -> Any:
        """Return a copy of the first full batch; as in `fit`, floats are converted to Keras's precision."""
        return self.as_step_data(mapped(self._rows(0, self.batch_samples), _converted))

    def as_step_data(self, batch: Any) -> Any:
        """Return the parts as `fit` packs them: x alone is not in a tuple, unless it is a tuple or list of arrays."""
        return packed(itertools.takewhile(lambda part: part is not None, batch))  # `fit` ignores weights without targets

    def sample_count(self) -> int | None:
        return self._count

    def without_targets(self) -> Arrays:
        """Return x alone, which is all that `predict` takes."""
        alone = Arrays(self._parts[0], self._config, self._report_error, None)
        alone.part_count = self.part_count
        return alone

    def split(self, share: float) -> tuple[Arrays, Arrays]:
        """Split off the last `share` of the samples for validation, as `validation_split` of `fit` does."""
        kept = math.floor(self._count * (1.0 - share))
        if not 0 < kept < self._count:
            raise UsageError(
                f"a share of {share:g} of {self._count} samples leaves none for training or none for validation; change it",
                key="fit_kwargs.validation_split",
            )
        rows = self._rows(0, kept), self._rows(kept, self._count)
        training, validation = (Arrays(part, self._config, self._report_error, None) for part in rows)
        training.part_count = validation.part_count = self.part_count
        return training, validation

    def fit_arguments(self, steps: int) -> dict[str, Any]:
        """Return arguments that make `fit` train on all full batches, for as many epochs as the steps need."""
        return self._arguments(self._length, steps)  # fewer batches would take less memory than the user's run

    def epoch_arguments(self, steps: int, epochs: int) -> dict[str, Any]:
        """As `FitInput` says; the arrays are sliced, so that `fit` copies only what it trains on."""
        return {**self._arguments(min(steps, self._length), steps), "epochs": epochs}

    def pipeline_arguments(self, steps: int) -> dict[str, Any]:
        """Return arguments that make `fit` run on a few batches, repeated."""
        # all batches would take more memory than the user's run: `fit` copies the arrays that it is given, and that run
        # never holds a second copy of all of them
        few = _PIPELINE_BYTES // max(1, bytes_of(self.batch()))
        return self._arguments(min(self._length, max(_FEWEST_PIPELINE_BATCHES, few)), steps)

    def validation_arguments(self, steps: int) -> dict[str, Any]:
        return {
            "validation_data": self._parts,
            "validation_steps": min(steps, math.ceil(self._count / self.batch_samples)),
            "validation_batch_size": self.batch_samples,
        }

    def array_bytes(self) -> ArrayBytes:
        """Return the bytes of mapped arrays, of the tensors that `fit` trains on, and of the temporary copies for them."""
        # On TensorFlow, Keras first casts all arrays that hold floats of another precision. TensorFlow then turns one array
        # after the other into a tensor, each from one more copy of the array (Keras 3.15 `convert_to_sliceable`, TensorFlow
        # 2.21 `convert_to_eager_tensor`). On other backends, Keras casts the arrays and slices them batch by batch.
        arrays = leaves(self._parts)
        from_files = sum(bytes_of(array) for array in arrays if _is_mapped(array))
        cast = tuple(_tensor_bytes(array) for array in arrays if _is_cast(array))
        if not self.one_fit:
            return ArrayBytes(from_files, cast)
        copied = [0 if hasattr(array, "numpy") else _tensor_bytes(array) for array in arrays]  # tensors are not copied
        # while an array is copied, the tensors of the arrays after it do not exist yet
        beyond_tensors = max(size - sum(copied[index + 1 :]) for index, size in enumerate(copied))
        return ArrayBytes(from_files, tuple(copied), conversion=beyond_tensors + sum(cast))

    def _arguments(self, batches: int, steps: int) -> dict[str, Any]:
        names = ("x", "y", "sample_weight")
        return {
            **dict(zip(names, self._rows(0, batches * self.batch_samples), strict=False)),
            "batch_size": self.batch_samples,
            "epochs": math.ceil(steps / batches),
        }

    def _rows(self, first: int, end: int) -> tuple[Any, ...]:
        """Return the rows from `first` to before `end`, as views that share the arrays' memory."""
        if (first, end) == (0, self._count):
            return self._parts
        return tuple(_sliced(part, first, end) for part in self._parts)


def _sliced(nest: Any, first: int, end: int) -> Any:
    """Slice the arrays of a nest. Lists stay lists, because `fit` takes several inputs as a list."""
    if isinstance(nest, list):
        return [_sliced(part, first, end) for part in nest]
    return mapped(nest, lambda array: _rows_of(array, first, end))


def _rows_of(array: Any, first: int, end: int) -> Any:
    if not hasattr(array, "dense_shape"):
        return array[first:end]
    import tensorflow as tf  # already loaded, since the array is a TensorFlow tensor

    widths = [end - first, *(int(size) for size in array.dense_shape[1:])]
    return tf.sparse.slice(array, [first, *([0] * (len(widths) - 1))], widths)


def _converted(array: Any) -> Any:
    """Return rows as the NumPy array that a train step sees; return ragged and sparse rows unchanged."""
    rows = dense(array)
    if is_ragged(rows) or is_sparse(rows):
        return rows
    return np.array(rows, _trained_type(rows.dtype))


def _tensor_bytes(array: Any) -> int:
    """Return the bytes of the tensor that `fit` makes from an array, with floats in Keras's precision."""
    return sum(int(part.size) * _trained_type(part.dtype).itemsize for part in components(array))


def _is_cast(array: Any) -> bool:
    return any(_trained_type(part.dtype) != part.dtype for part in components(array))


def _trained_type(kind: Any) -> np.dtype[Any]:
    """Return the type to which `fit` converts numbers of this type: floats get Keras's precision."""
    import keras  # heavy: must stay out of the parent

    return np.dtype(str(keras.config.floatx()) if np.issubdtype(kind, np.floating) else kind)


def _is_mapped(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)
