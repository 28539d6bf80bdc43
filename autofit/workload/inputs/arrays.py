"""Arrays: `batch_size` is an argument of `fit`, and there is no other knob."""

from __future__ import annotations

import itertools
import math
import mmap
from collections.abc import Callable, Mapping
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
from autofit.workload.inputs.fit_input import ArrayBytes, FitInput

_MOST_PARTS = 3  # x, y and sample weights
_PIPELINE_BYTES = 32 * 2**20  # of the arrays that the pipeline alone reads: it copies a row as fast in all of them
_FEWEST_PIPELINE_BATCHES = 4


class Arrays(FitInput):
    """Arrays in memory as `fit` takes them: x, (x,), (x, y) or (x, y, sample_weight), each a nest of arrays.

    Raises:
        UsageError: the arrays do not agree on the number of samples, or there are none.
    """

    kind: ClassVar[str] = "arrays"
    fit_knobs: ClassVar[tuple[str, ...]] = ("batch_size",)
    ends_by_itself: ClassVar[bool] = False
    of_fixed_size = True  # of full batches alone Keras knows the size (Keras 3.15 `ArrayDataAdapter`)

    def __init__(
        self, data: Any, config: FitConfig, report_error: Callable[[BaseException], None], reopen: Callable[[], Any] | None
    ) -> None:
        lengths = sorted({length_of(leaf) for leaf in leaves(data)})
        if len(lengths) != 1 or lengths[0] == 0:
            raise UsageError(
                f"the arrays do not have the same number of samples, at least one: their lengths are {lengths}"
            )
        self._parts = tuple(data) if isinstance(data, tuple | list) else (data,)
        self.part_count = len(data) if isinstance(data, tuple | list) else 0
        self._config, self._report_error = config, report_error
        self._count, self.one_fit = lengths[0], _becomes_tensors()
        self.batch_samples = min(config.batch_size or 32, self._count)
        self.applied = FitConfig(batch_size=self.batch_samples)

    @staticmethod
    def recognises(data: Any) -> bool:
        """Whether `data` is an array, a dict of arrays, or a tuple of one to three such, the first not None."""
        parts = tuple(data) if isinstance(data, tuple | list) else (data,)
        return (
            1 <= len(parts) <= _MOST_PARTS
            and bool(leaves(parts[0]))
            and all(is_array(leaf) and len(leaf.shape) > 0 for leaf in leaves(parts))
        )

    def knobs(self, named: Mapping[str, str]) -> dict[str, str]:
        """What `fit` takes, whatever a function that returns the arrays takes."""
        return {knob: knob for knob in self.fit_knobs}

    def batch(self) -> Any:
        """The first full batch, copied from the mapped file, floats in Keras's precision as `fit` converts them."""
        return self.as_step_data(mapped(self._rows(0, self.batch_samples), _converted))

    def as_step_data(self, batch: Any) -> Any:
        """Parts as `fit` packs them: an x without targets is not in a tuple, unless it is a tuple or list of arrays."""
        given = itertools.takewhile(lambda part: part is not None, batch)  # sample weights without targets do not count
        parts = tuple(given)
        return parts[0] if len(parts) == 1 and not isinstance(parts[0], tuple | list) else parts

    def sample_count(self) -> int | None:
        """The length of the first axis."""
        return self._count

    def last_batch_samples(self) -> int | None:
        """What is left of the first axis."""
        return self._count % self.batch_samples or self.batch_samples

    def split(self, share: float) -> tuple[Arrays, Arrays]:
        """The arrays to train on, and the last `share` of them to validate on, as `validation_split` of `fit` divides them.

        Raises:
            UsageError: one of both would be empty.
        """
        kept = math.floor(self._count * (1.0 - share))
        if not 0 < kept < self._count:
            raise UsageError(
                f"{share:g} of {self._count} samples leaves none to train or to validate on",
                key="fit_kwargs.validation_split",
            )
        rows = self._rows(0, kept), self._rows(kept, self._count)
        training, validation = (Arrays(part, self._config, self._report_error, None) for part in rows)
        training.part_count = validation.part_count = self.part_count
        return training, validation

    def fit_arguments(self, steps: int) -> dict[str, Any]:
        """All full batches, for as many epochs as the steps take: a part of them would take less memory."""
        return self._arguments(self._count // self.batch_samples, steps)

    def pipeline_arguments(self, steps: int) -> dict[str, Any]:
        """A few batches over and over: `fit` copies the arrays, and the user's run does not hold a second copy."""
        few = _PIPELINE_BYTES // max(1, bytes_of(self.batch()))
        return self._arguments(min(self._count // self.batch_samples, max(_FEWEST_PIPELINE_BATCHES, few)), steps)

    def validation_arguments(self, steps: int) -> dict[str, Any]:
        """All arrays, evaluated for at most so many steps."""
        return {
            "validation_data": self._parts,
            "validation_steps": min(steps, math.ceil(self._count / self.batch_samples)),
            "validation_batch_size": self.batch_samples,
        }

    def array_bytes(self) -> ArrayBytes:
        """The arrays; their tensors, on which `fit` trains; and the copies from which those are made, one after the other.

        Keras casts floats of another precision all together, and TensorFlow copies each array once more before it makes a
        tensor of it (Keras 3.15 `convert_to_sliceable`, TensorFlow 2.21 `convert_to_eager_tensor`). On other backends Keras
        slices the arrays batch by batch, once they are cast.
        """
        arrays = leaves(self._parts)
        from_files = sum(bytes_of(array) for array in arrays if _is_mapped(array))
        if not _becomes_tensors():
            cast = tuple(_tensor_bytes(array) for array in arrays if _is_cast(array))
            return ArrayBytes(from_files, cast)
        copied = [0 if hasattr(array, "numpy") else _tensor_bytes(array) for array in arrays]  # tensors stay what they are
        # while an array is copied, the tensors of those after it do not exist yet
        beyond_tensors = max(size - sum(copied[index + 1 :]) for index, size in enumerate(copied))
        return ArrayBytes(
            mapped=from_files,
            tensors=tuple(copied),
            conversion=max(0, beyond_tensors) + sum(_tensor_bytes(array) for array in arrays if _is_cast(array)),
        )

    def _arguments(self, batches: int, steps: int) -> dict[str, Any]:
        names = ("x", "y", "sample_weight")
        return {
            **dict(zip(names, self._rows(0, batches * self.batch_samples), strict=False)),
            "batch_size": self.batch_samples,
            "epochs": math.ceil(steps / batches),
        }

    def _rows(self, first: int, end: int) -> tuple[Any, ...]:
        """Some of the rows, in views that share the arrays' memory."""
        if (first, end) == (0, self._count):
            return self._parts
        return tuple(_sliced(part, first, end) for part in self._parts)


def _sliced(nest: Any, first: int, end: int) -> Any:
    """Rows of the arrays of a nest, lists kept: `fit` takes several inputs as a list."""
    if isinstance(nest, list):
        return [_sliced(part, first, end) for part in nest]
    return mapped(nest, lambda array: _rows_of(array, first, end))


def _rows_of(array: Any, first: int, end: int) -> Any:
    if not hasattr(array, "dense_shape"):
        return array[first:end]
    import tensorflow as tf  # the array is TensorFlow's own

    widths = [end - first, *(int(size) for size in array.dense_shape[1:])]
    return tf.sparse.slice(array, [first, *([0] * (len(widths) - 1))], widths)


def _converted(array: Any) -> Any:
    """A dense array of rows as the array that a train step sees."""
    rows = dense(array)
    if is_ragged(rows) or is_sparse(rows):
        return rows
    return np.array(rows, _float_type()) if _is_cast(array) else np.array(rows)


def _tensor_bytes(array: Any) -> int:
    """Bytes of the tensor that `fit` makes of an array, floats in Keras's precision."""
    parts = components(array)
    return sum(int(part.size) * int((_float_type() if _is_float(part.dtype) else part.dtype).itemsize) for part in parts)


def _is_cast(array: Any) -> bool:
    """Whether `fit` casts an array to Keras's precision: floats of another one."""
    kinds = {part.dtype for part in components(array)}
    return any(_is_float(kind) and kind != _float_type() for kind in kinds)


def _is_float(kind: Any) -> bool:
    return bool(np.issubdtype(kind, np.floating))


def _becomes_tensors() -> bool:
    """Whether `fit` makes tensors of whole arrays."""
    import keras  # heavy: must stay out of the parent

    return bool(keras.backend.backend() == "tensorflow")


def _float_type() -> np.dtype[Any]:
    import keras  # heavy: must stay out of the parent

    precision: np.dtype[Any] = np.dtype(keras.config.floatx())
    return precision


def _is_mapped(array: Any) -> bool:
    """Whether an array's memory is that of a file."""
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)
