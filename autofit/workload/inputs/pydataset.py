"""`keras.utils.PyDataset` as input: a factory returns one, or the user gives one whose knobs are
attributes.
"""

from __future__ import annotations

import copyreg
import itertools
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from autofit.records.knobs import KNOBS, FitConfig
from autofit.workload.inputs.batch import samples_of
from autofit.workload.inputs.fit_input import BatchMaker, FitInput, call_reported
from autofit.workload.inputs.knobs import is_pydataset

_WORKER_KNOBS = ("workers", "max_queue_size", "use_multiprocessing")


class PyDatasetInput(FitInput):
    """The user's dataset with one config applied; `fit` receives a `DatasetProxy` with the required
    number of batches.
    """

    kind = "PyDataset"
    source = "__getitem__ of the PyDataset"
    factory = ("batch_size, **knobs", "MyDataset(batch_size, **knobs)")
    tunes = ("batch_size", *_WORKER_KNOBS)
    keras_starts_workers = True
    leaves_workers = True
    computes_length = True
    recognises = staticmethod(is_pydataset)

    def _open(self) -> None:
        # arguments of the dataset's constructor, because `fit` of Keras 3 takes none of them
        for knob in _WORKER_KNOBS:
            # a queue that Keras does not make keeps the length that a script gives it
            has_effect = self._config.has_queue or not KNOBS[knob].of_queue
            self._require_passed_on(
                knob,
                getattr(self._config, knob) if has_effect else None,
                "the base class, as in super().__init__(**kwargs)",
            )
        self.applied = FitConfig(
            None, *(getattr(self._data, knob) for knob in _WORKER_KNOBS)
        )
        self.epoch_batches = self._data.num_batches
        self._made = self._shared("q")
        self._keep_first(self._epoch())

    def _remedy(self, data: Any, knob: str) -> str:
        if knob == "batch_size":  # Keras's classes take none
            return super()._remedy(data, knob)
        if type(self._data).__module__.startswith(
            "keras."
        ):  # an iterator of images, for example
            return (
                "add parameters with these names, and set its attributes, as in images.workers = "
                "workers"
            )
        return "give its class **kwargs, and pass them on: super().__init__(**kwargs)"

    def as_step_data(self, batch: Any) -> Any:
        batch = super().as_step_data(batch)
        return batch if isinstance(batch, dict | tuple) else (batch,)

    def sample_count(self) -> int | None:
        if self.epoch_batches is None or not self._counts_samples:
            return super().sample_count()
        last = call_reported(
            self._report_error, self._data.__getitem__, self.epoch_batches - 1
        )
        return (self.epoch_batches - 1) * self.batch_samples + samples_of(
            self._as_batch(last), self.batch_samples
        )

    def fit_arguments(self, steps: int) -> dict[str, Any]:
        # loads Keras: must stay out of the parent
        from autofit.workload.inputs.proxy import DatasetProxy

        knobs = {knob: getattr(self._data, knob) for knob in _WORKER_KNOBS}
        maker = BatchMaker(self._report_error, self._made, self._is_over)
        return {
            "x": DatasetProxy(self._data, self.epoch_batches, steps, maker, **knobs)
        }

    def _epoch(self) -> Iterator[Any]:
        indices = (
            itertools.count()
            if self.epoch_batches is None
            else range(self.epoch_batches)
        )
        return map(self._data.__getitem__, indices)


def register_iterators() -> None:
    """Let pickle send the iterators of Keras's `ImageDataGenerator`; lock and generator are made
    anew where one arrives.
    """
    module = sys.modules.get("keras.src.legacy.preprocessing.image")
    if module is not None:
        for name in ("DirectoryIterator", "NumpyArrayIterator", "DataFrameIterator"):
            copyreg.pickle(getattr(module, name), _reduced_iterator)


# pickle and copy use the same reduction, and copy knows no hook for the state
def _reduced_iterator(iterator: Any) -> tuple[Any, ...]:
    state = {
        name: value
        for name, value in vars(iterator).items()
        if name not in ("lock", "index_generator")
    }
    return _restored, (type(iterator), state)


def _restored(made: type, state: Mapping[str, Any]) -> Any:
    iterator: Any = object.__new__(made)
    vars(iterator).update(state, lock=threading.Lock())
    iterator.index_generator = iterator._flow_index()
    return iterator
