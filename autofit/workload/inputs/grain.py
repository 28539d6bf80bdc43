"""grain as input: a factory returns a `grain.IterDataset` or a `grain.DataLoader`.

Beside `batch_size`, its parameters are either `num_threads` and `prefetch_buffer_size`, for `grain.ReadOptions`, or
`num_workers` and `per_worker_buffer_size`, for the processes of `mp_prefetch` or of a `DataLoader`. The factory batches
before it reads ahead, so that the buffers count batches.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from autofit.errors import UsageError
from autofit.workload.inputs.fit_input import FitInput, repeated
from autofit.workload.inputs.knobs import PROCESSES, THREADS, is_grain, is_grain_map

_LOOKED_AT = 2  # batches from which Keras reads shapes before it trains (Keras 3.15, `GrainDatasetAdapter`)


class Grain(FitInput):
    """The user's grain dataset with one config applied, read by threads; `fit` receives the required number of batches."""

    kind: ClassVar[str] = "grain"
    source: ClassVar[str] = "the grain dataset"
    recognises = staticmethod(is_grain)

    def _open(self) -> None:
        if is_grain_map(self._data):
            raise UsageError(
                "the factory returned a grain.MapDataset, of which fit would hold up to 500 batches. Return "
                "dataset.to_iter_dataset(grain.ReadOptions(num_threads, prefetch_buffer_size)), with parameters "
                "num_threads and prefetch_buffer_size"
            )
        self.applied = replace(self._config, batch_size=None, use_multiprocessing=self.has_processes or None)
        self._keep_first(self._epoch())

    @classmethod
    def for_names(cls, names: Mapping[str, str]) -> type[FitInput]:
        """Return the class for a factory with these names of knobs: `GrainProcesses` if its `workers` are processes."""
        return GrainProcesses if names.get("workers") == PROCESSES else cls

    def fit_arguments(self, steps: int) -> dict[str, Any]:
        return {"x": _full_batches_class()(self, steps)}

    def validation_arguments(self, steps: int) -> dict[str, Any]:
        return {"validation_data": self._data, "validation_steps": steps}

    def _epoch(self) -> Any:
        """Return the same data without threads and processes, which would take seconds to start."""
        reopen: Any = self._reopen  # of a factory: a ready-made dataset was refused
        return reopen(**{name: 0 for name in (PROCESSES, THREADS) if name in reopen.keywords})

    def full_batches(self) -> Iterator[Any]:
        """Return the full batches of an epoch of the user's dataset."""
        return self.full_batches_of(lambda: self._data)


class GrainProcesses(Grain):
    """The same dataset, whose batches processes make; each of them holds `prefetch_factor` batches ready."""

    kind: ClassVar[str] = "grain with processes"
    has_processes: ClassVar[bool] = True
    spawns: ClassVar[bool] = True


@functools.cache
def _full_batches_class() -> type:
    """Return the class of datasets that hand out `steps` full batches of a `Grain`, in one epoch."""
    import grain  # heavy: must stay out of the parent

    class Batches(grain.DatasetIterator):  # type: ignore[misc]  # grain ships no types
        def __init__(self, made: Iterator[Any]) -> None:
            super().__init__()
            self._made = made

        def __next__(self) -> Any:
            return next(self._made)

        def get_state(self) -> dict[str, Any]:
            return {}

        def set_state(self, state: Any) -> None:
            raise NotImplementedError("a trial never goes back")

    class FullBatches(grain.IterDataset):  # type: ignore[misc]  # as above
        def __init__(self, data: Grain, steps: int) -> None:
            super().__init__()
            # one iterator for the look of Keras and for the training: another would start the processes again
            self._made = repeated(data.full_batches, steps + _LOOKED_AT)

        def __iter__(self) -> Any:
            return Batches(self._made)

    return FullBatches
