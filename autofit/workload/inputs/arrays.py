"""Arrays as input; their only knob is `batch_size`, an argument of `fit`."""

from __future__ import annotations

import itertools
import math
import mmap
from collections.abc import Mapping
from typing import Any

import numpy as np

from autofit import backends
from autofit.errors import UsageError
from autofit.records.knobs import FitConfig
from autofit.workload.inputs.batch import (
    bytes_of,
    components,
    dense,
    is_array,
    leaves,
    length_of,
    mapped,
)
from autofit.workload.inputs.fit_input import ArrayBytes, FitInput

_MOST_PARTS = 3  # x, y and sample weights
# size of the arrays that time the pipeline alone: more rows give the same rate
_PIPELINE_BYTES = 32 * 2**20
_FEWEST_PIPELINE_BATCHES = 4


class Arrays(FitInput):
    """Arrays in memory as `fit` takes them: x, (x,), (x, y) or (x, y, sample_weight); each part is
    a nest of arrays.
    """

    kind = "arrays"
    tunes = ()  # a function that makes arrays needs no knobs
    ends_by_itself = False
    fit_makes_batches = True
    # Keras knows the size of full batches (Keras 3.15 `ArrayDataAdapter`)
    of_fixed_size = True
    epoch_batches: int  # without a partial batch

    def _open(self) -> None:
        is_tuple = isinstance(self._data, tuple | list)
        parts = tuple(self._data) if is_tuple else (self._data,)
        self._parts = tuple(_each(part, _without_index) for part in parts)
        self.part_count = len(self._parts) if is_tuple else 0
        self._count, *others = {length_of(leaf) for leaf in leaves(self._parts)}
        if others:
            raise UsageError(
                f"the arrays have different numbers of samples: {sorted([self._count, *others])}"
            )
        if self._count == 0:
            raise UsageError(
                "the arrays have no samples: the length of their first axis is 0"
            )
        # whose `fit` turns whole arrays into tensors
        self.one_fit = backends.current().uses_tfdata
        self.batch_samples = max(1, min(self._config.batch_size or 32, self._count))
        self.epoch_batches = self._count // self.batch_samples
        self.applied = FitConfig(batch_size=self.batch_samples)

    @staticmethod
    def recognises(data: Any) -> bool:
        parts = tuple(data) if isinstance(data, tuple | list) else (data,)
        if not 1 <= len(parts) <= _MOST_PARTS or not leaves(parts[0]):
            return False
        return all(
            is_array(leaf) and len(leaf.shape) > 0 and not hasattr(leaf, "dense_shape")
            for leaf in leaves(parts)
        )

    def knobs(self, named: Mapping[str, str]) -> dict[str, str]:
        # of `fit`, even if a factory that returns arrays has no such parameter
        return {"batch_size": "batch_size"}

    def batch(self) -> Any:
        return self.as_step_data(mapped(self._rows(0, self.batch_samples), _converted))

    def as_step_data(self, batch: Any) -> Any:
        # as `fit` packs them: it ignores weights without targets, and x alone is a tuple only if it
        # is a nest of arrays
        parts = tuple(itertools.takewhile(lambda part: part is not None, batch))
        return (
            parts[0]
            if len(parts) == 1 and not isinstance(parts[0], tuple | list)
            else parts
        )

    def sample_count(self) -> int | None:
        return self._count

    def without_targets(self) -> Arrays:
        return self._of(self._parts[0])

    def split(self, share: float) -> tuple[Arrays, Arrays]:
        training = math.floor(self._count * (1.0 - share))
        if not 0 < training < self._count:
            raise UsageError(
                f"a share of {share:g} of {self._count} samples leaves none for training or none "
                "for validation; change it",
                key="fit_kwargs.validation_split",
            )
        return self._of(self._rows(0, training)), self._of(
            self._rows(training, self._count)
        )

    def _of(self, data: Any) -> Arrays:
        other = Arrays(data, self._config, self._report_error, None)
        other.part_count = self.part_count
        return other

    # Memory must be that of the user's run, and each call of `fit` copies the arrays that it is
    # given: training gets all full batches, short epochs only what they train on, and the pipeline
    # alone, which is a second call, a few batches.

    def fit_arguments(
        self, steps: int, most_batches: int | None = None
    ) -> dict[str, Any]:
        batches = min(self.epoch_batches, most_batches or self.epoch_batches)
        rows = self._rows(0, batches * self.batch_samples)
        arguments = dict(zip(("x", "y", "sample_weight"), rows, strict=False))
        arguments["batch_size"] = self.batch_samples
        arguments["epochs"] = math.ceil(steps / batches)
        return arguments

    def epoch_arguments(self, steps: int, epochs: int) -> dict[str, Any]:
        return {**self.fit_arguments(steps, steps), "epochs": epochs}

    def pipeline_arguments(self, steps: int) -> dict[str, Any]:
        few = _PIPELINE_BYTES // max(1, bytes_of(self.batch()))
        return self.fit_arguments(steps, max(_FEWEST_PIPELINE_BATCHES, few))

    def validation_arguments(self, steps: int) -> dict[str, Any]:
        return {
            "validation_data": self._parts,
            "validation_steps": min(steps, math.ceil(self._count / self.batch_samples)),
            "validation_batch_size": self.batch_samples,
        }

    def array_bytes(self) -> ArrayBytes:
        # On TensorFlow, Keras first casts all arrays that hold floats of another precision.
        # TensorFlow then turns one array after the other into a tensor, each from one more copy of
        # the array (Keras 3.15 `convert_to_sliceable`, TensorFlow 2.21 `convert_to_eager_tensor`).
        # On other backends, Keras casts the arrays and slices them batch by batch.
        arrays = leaves(self._parts)
        from_files = sum(bytes_of(array) for array in arrays if _is_mapped(array))
        cast = []
        copied = []
        for array in arrays:
            parts = components(array)
            types = [_trained_type(part.dtype) for part in parts]
            size = sum(
                int(part.size) * trained.itemsize
                for part, trained in zip(parts, types, strict=True)
            )
            if types != [part.dtype for part in parts]:
                cast.append(size)
            # tensors are not copied
            copied.append(0 if hasattr(array, "numpy") else size)
        if not self.one_fit:
            return ArrayBytes(from_files, tuple(cast))
        # while an array is copied, the tensors of the arrays after it do not exist yet
        beyond_tensors = max(
            size - sum(copied[index + 1 :]) for index, size in enumerate(copied)
        )
        return ArrayBytes(
            from_files, tuple(copied), conversion=beyond_tensors + sum(cast)
        )

    def _rows(
        self, first: int, end: int
    ) -> tuple[Any, ...]:  # views that share the arrays' memory
        if (first, end) == (0, self._count):
            return self._parts
        return tuple(
            _each(part, lambda array: array[first:end]) for part in self._parts
        )


# a list stays a list, because `fit` takes several inputs as a list
def _each(part: Any, function: Any) -> Any:
    if isinstance(part, list):
        return [_each(inner, function) for inner in part]
    return mapped(part, function)


def _without_index(array: Any) -> Any:
    # Keras makes a column of a Series, and casts a table of several types to floats
    # (`PandasSliceable`)
    if not hasattr(array, "to_numpy"):
        return array
    from keras.src.trainers.data_adapters.array_slicing import convert_to_sliceable

    table = convert_to_sliceable(array)
    return table.convert_to_numpy(table.array)


# as a train step sees the rows; ragged and sparse tensors stay as they are
def _converted(array: Any) -> Any:
    rows = dense(array)
    return (
        np.array(rows, _trained_type(rows.dtype))
        if hasattr(rows, "__array__")
        else rows
    )


def _trained_type(kind: Any) -> np.dtype[Any]:
    import keras  # heavy: must stay out of the parent

    # `fit` converts floats to Keras's precision
    return np.dtype(
        str(keras.config.floatx()) if np.issubdtype(kind, np.floating) else kind
    )


def _is_mapped(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)
