"""Generators, which `fit` draws from in a single thread, and grain datasets as input: a factory
returns one.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from autofit.errors import UsageError
from autofit.records.knobs import PROCESSES, THREADS, FitConfig
from autofit.workload.inputs.fit_input import FitInput, repeated
from autofit.workload.inputs.knobs import has_base

# batches from which Keras reads shapes before it trains (Keras 3.15, `GrainDatasetAdapter`)
_LOOKED_AT = 2


class Generator(FitInput):
    """The full batches of a generator; when it ends, the factory is called for a new one."""

    kind = "generator"
    source = "the generator"
    factory = ("batch_size", "my_generator(batch_size)")
    recognises = staticmethod(inspect.isgenerator)  # `fit` refuses other iterators

    def _open(self) -> None:
        self.applied = FitConfig()
        self._made = self._shared("q")
        self._keep_first(self._data)

    def fit_arguments(self, steps: int) -> dict[str, Any]:
        return {"x": repeated(lambda: filter(self._is_full, self._epoch()), steps)}

    def _epoch(self) -> Iterator[Any]:
        for batch in self._batches_of(self._reopen):
            self._made.value += 1
            yield batch


class Grain(FitInput):
    """The user's grain dataset with one config applied, read by threads; `fit` receives the
    required number of batches.
    """

    kind = "grain"
    source = "the grain dataset"
    factory = (
        "batch_size, num_threads, prefetch_buffer_size",
        "dataset.batch(batch_size).to_iter_dataset(grain.ReadOptions(num_threads, "
        "prefetch_buffer_size))",
    )
    recognises = staticmethod(
        lambda data: has_base(data, "grain", "MapDataset", "IterDataset", "DataLoader")
    )

    def _open(self) -> None:
        if has_base(self._data, "grain", "MapDataset"):
            raise UsageError(
                "fit would hold up to 500 batches of the grain.MapDataset that the factory "
                "returned. Return "
                "dataset.to_iter_dataset(grain.ReadOptions(num_threads, prefetch_buffer_size)) of "
                "these two parameters"
            )
        self.applied = replace(
            self._config,
            batch_size=None,
            use_multiprocessing=self.has_processes or None,
        )
        if self.has_processes:
            # grain's default
            self.applied = replace(
                self.applied, prefetch_factor=self.applied.prefetch_factor or 1
            )
        self._keep_first(self._epoch())

    def fit_arguments(self, steps: int) -> dict[str, Any]:
        import grain  # heavy: must stay out of the parent

        # one iterator serves the look of Keras and the training: another would start the processes
        # again
        batches = repeated(
            lambda: filter(self._is_full, self._batches_of(lambda: self._data)),
            steps + _LOOKED_AT,
        )

        class Batches(grain.DatasetIterator):  # type: ignore[misc]  # grain ships no types
            # they must be defined, but a trial never goes back
            get_state = set_state = None

            def __next__(self) -> Any:
                return next(batches)

        class Dataset(grain.IterDataset):  # type: ignore[misc]  # as above
            def __iter__(self) -> Any:
                return Batches()

        return {"x": Dataset()}

    def _epoch(self) -> Any:
        # the same data without threads and processes, which would take seconds to start
        return self._reopen(
            **{
                name: 0
                for name in (PROCESSES, THREADS)
                if name in self._reopen.keywords
            }
        )


class GrainProcesses(Grain):
    """The same dataset, whose batches `num_workers` processes make; each holds
    `per_worker_buffer_size` batches ready.
    """

    kind = "grain with processes"
    has_processes = True
