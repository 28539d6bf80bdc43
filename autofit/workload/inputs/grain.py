"""grain as input: a factory returns a `grain.IterDataset` or a `grain.DataLoader`.

Beside `batch_size`, its parameters are `num_threads` and `prefetch_buffer_size`, for `grain.ReadOptions`, or `num_workers`
and `per_worker_buffer_size`, for the processes of `mp_prefetch` or of a `DataLoader`. It batches before it reads ahead, so
that the buffers count batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

from autofit.errors import UsageError
from autofit.records.knobs import PROCESSES, THREADS
from autofit.workload.inputs.fit_input import FitInput, repeated
from autofit.workload.inputs.knobs import is_grain, is_grain_map

_LOOKED_AT = 2  # batches from which Keras reads shapes before it trains (Keras 3.15, `GrainDatasetAdapter`)


class Grain(FitInput):
    """The user's grain dataset with one config applied, read by threads; `fit` receives the required number of batches."""

    kind: ClassVar[str] = "grain"
    source: ClassVar[str] = "the grain dataset"
    recognises = staticmethod(is_grain)

    def _open(self) -> None:
        if is_grain_map(self._data):
            raise UsageError(
                "fit would hold up to 500 batches of the grain.MapDataset that the factory returned. Return "
                "dataset.to_iter_dataset(grain.ReadOptions(num_threads, prefetch_buffer_size)) of these two parameters"
            )
        self.applied = replace(self._config, batch_size=None, use_multiprocessing=self.has_processes or None)
        self._keep_first(self._epoch())

    def fit_arguments(self, steps: int) -> dict[str, Any]:
        # one iterator serves the look of Keras and the training: another would start the processes again
        return {"x": _dataset_of(repeated(self._full_batches, steps + _LOOKED_AT))}

    def validation_arguments(self, steps: int) -> dict[str, Any]:
        return {"validation_data": self._data, "validation_steps": steps}

    def _full_batches(self) -> Iterator[Any]:
        return filter(self.is_full, self.batches_of(lambda: self._data))

    def _epoch(self) -> Any:
        """Return the same data without threads and processes, which would take seconds to start."""
        reopen: Any = self._reopen  # of a factory: a ready-made dataset was refused
        return reopen(**{name: 0 for name in (PROCESSES, THREADS) if name in reopen.keywords})


class GrainProcesses(Grain):
    """The same dataset, whose batches processes make; each of them holds `prefetch_factor` batches ready."""

    kind: ClassVar[str] = "grain with processes"
    has_processes: ClassVar[bool] = True


def _dataset_of(batches: Iterator[Any]) -> Any:
    import grain  # heavy: must stay out of the parent

    class Batches(grain.DatasetIterator):  # type: ignore[misc]  # grain ships no types
        get_state = set_state = None  # they must be defined, but a trial never goes back

        def __next__(self) -> Any:
            return next(batches)

    class Dataset(grain.IterDataset):  # type: ignore[misc]  # as above
        def __iter__(self) -> Any:
            return Batches()

    return Dataset()
