"""grain as input: a factory returns a `grain.MapDataset`, `grain.IterDataset` or `grain.DataLoader`.

Its knobs are `batch_size` and either the threads that read (`num_threads`, with `prefetch_buffer_size`, of
`grain.ReadOptions`) or the processes that make batches (`num_workers` or `worker_count`, with `per_worker_buffer_size` or
`worker_buffer_size`). grain spawns its processes for every pass through the data. A `grain.MapDataset` that `fit` iterates
gets the defaults of `grain.ReadOptions`: 16 threads, which hold up to 500 batches.
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from autofit.records.trial import FitConfig
from autofit.records.units import format_bytes
from autofit.workload.inputs.batch import bytes_of
from autofit.workload.inputs.fit_input import FitInput, call_counted, repeated
from autofit.workload.inputs.knobs import PROCESSES, THREADS, is_grain, is_grain_map

_ENDLESS = 2**62  # grain gives an endless dataset a length near the largest integer
_LOOKED_AT = 2  # batches from which Keras 3.15 reads shapes before it trains
_LENGTHS_UNKNOWN = ("Filter", "FlatMap", "Mix", "Concat", "Pack", "Rebatch", "Zip", "Interleave")  # transformations


class Grain(FitInput):
    """The user's grain dataset with one config applied, read by threads; `fit` receives the required number of batches."""

    kind: ClassVar[str] = "grain"
    source: ClassVar[str] = "the grain dataset"
    leaves_workers: ClassVar[bool] = True
    recognises = staticmethod(is_grain)

    def _open(self) -> None:
        # the same data without threads and processes, to look at
        given = getattr(self._reopen, "keywords", {})
        alone = {name: 0 for name in (*PROCESSES, *THREADS) if name in given}
        self._plain = functools.partial(self._reopen, **alone)() if alone and self._reopen else self._data
        self._length = _length(self._plain)
        self.applied = self._applied()
        self._keep_first(self._epoch())
        self._made = multiprocessing.Value("q", 0) if is_grain_map(self._data) else None

    @classmethod
    def for_names(cls, names: Mapping[str, str]) -> type[FitInput]:
        """Return the class for a factory with these names of knobs: `GrainProcesses` if its `workers` are processes."""
        return GrainProcesses if names.get("workers") in PROCESSES else cls

    def knobs(self, named: Mapping[str, str]) -> dict[str, str]:
        """Return the batch size and the knobs of the threads, without a buffer that counts samples."""
        threads = [] if is_grain_map(self._data) else ["workers", *["max_queue_size"] * self._buffers_batches()]
        return {knob: name for knob, name in named.items() if knob in ("batch_size", *threads)}

    def notices(self, knobs: Iterable[str]) -> Iterator[str]:
        """Yield a notice about batches that grain holds ready although nobody asked for them."""
        held = self.applied.max_queue_size or 0
        if "max_queue_size" not in knobs and held > 1:
            yield (
                f"grain holds up to {held} batches ready, {format_bytes(held * bytes_of(self._batch))}: the default of "
                "grain.ReadOptions. To tune this, give the factory parameters num_threads and prefetch_buffer_size, and "
                "return dataset.to_iter_dataset(grain.ReadOptions(num_threads, prefetch_buffer_size))"
            )

    def fit_arguments(self, steps: int) -> dict[str, Any]:
        maps, iterates = _classes()
        return {"x": (maps if is_grain_map(self._data) else iterates)(self, steps)}

    def validation_arguments(self, steps: int) -> dict[str, Any]:
        return {"validation_data": self._data, "validation_steps": min(steps, self._length or steps)}

    def _applied(self) -> FitConfig:
        """Return the threads and the batches ahead of `grain.ReadOptions`; those of a MapDataset are the defaults."""
        import grain  # heavy: must stay out of the parent

        options = [node._read_options for node in _nodes(self._data) if hasattr(node, "_read_options")]
        reading = grain.ReadOptions() if is_grain_map(self._data) else options[0] if options else None
        if reading is None or not self._buffers_batches():
            return FitConfig(None, self._config.workers)
        held = min(int(reading.prefetch_buffer_size), self._length or _ENDLESS)
        return FitConfig(None, max(1, int(reading.num_threads)), max(1, held))

    def _buffers_batches(self) -> bool:
        """Return whether the threads fill their buffer with batches: `batch` comes before `to_iter_dataset`."""
        return not any(type(node).__name__ == "BatchIterDataset" for node in _nodes(self._plain))

    def _epoch(self) -> Iterable[Any]:
        data: Any = self._plain
        return (data[index] for index in range(len(data))) if is_grain_map(data) else data

    def full_batches(self) -> Iterator[Any]:
        """Return the full batches of an epoch of the user's dataset."""
        return self.full_batches_of(lambda: self._data)

    def batch_at(self, index: int) -> Any:
        """Return a full batch of a `grain.MapDataset`; after the last one, start over."""
        full = max(1, min(len(self._data), _ENDLESS) - 1)  # the last batch may be partial
        return call_counted(self._made, self._report_error, self._data.__getitem__, index % full)


class GrainProcesses(Grain):
    """The same dataset, whose batches worker processes make; each of them holds `prefetch_factor` batches ready."""

    kind: ClassVar[str] = "grain with processes"
    has_processes: ClassVar[bool] = True
    spawns: ClassVar[bool] = True
    ends_by_itself: ClassVar[bool] = False  # each epoch starts new processes, so a run is ended after some time
    leaves_workers: ClassVar[bool] = False

    def knobs(self, named: Mapping[str, str]) -> dict[str, str]:
        return {knob: name for knob, name in named.items() if knob in ("batch_size", "workers", "prefetch_factor")}

    def notices(self, knobs: Iterable[str]) -> Iterator[str]:
        """Yield a notice about what every epoch costs."""
        if "workers" in knobs:
            yield (
                "grain starts its worker processes anew in every epoch, which takes seconds; rates contain it only where "
                "an epoch is short. In your run, dataset.repeat() with steps_per_epoch keeps them"
            )

    def _applied(self) -> FitConfig:
        return FitConfig(None, self._config.workers or 0, None, True, self._config.prefetch_factor or 1)


def _nodes(data: Any) -> Iterator[Any]:
    """Yield the transformations of a dataset, the last one first, until one that has several parents."""
    node = getattr(data, "_dataset", data)  # of a DataLoader
    while node is not None:
        yield node
        parents = getattr(node, "_parents", ()) or ()
        node = next(iter(parents)) if len(parents) == 1 else None


def _length(data: Any) -> int | None:
    """Return the number of batches in an epoch; None if it is unknown or the data is endless."""
    nodes = list(_nodes(data))
    first = next((index for index, node in enumerate(nodes) if is_grain_map(node)), None)
    if first is None or any(type(node).__name__.startswith(_LENGTHS_UNKNOWN) for node in nodes[:first]):
        return None
    count = len(nodes[first])
    for node in reversed(nodes[:first]):
        if type(node).__name__ == "BatchIterDataset":
            count = count // node._batch_size if node._drop_remainder else -(-count // node._batch_size)
    return count if 0 < count < _ENDLESS else None


@functools.cache
def _classes() -> tuple[type, type]:
    """Return a MapDataset and an IterDataset that hand out the full batches of a `Grain`."""
    import grain  # heavy: must stay out of the parent

    class FullMap(grain.MapDataset):  # type: ignore[misc]  # grain ships no types
        def __init__(self, data: Grain, steps: int) -> None:
            super().__init__()
            self._data, self._steps, self._is_over = data, steps, data._is_over

        def __len__(self) -> int:
            return self._steps

        def __getitem__(self, index: Any) -> Any:
            if self._is_over is not None and self._is_over.value:
                return self._data.batch()
            return self.slice(index) if isinstance(index, slice) else self._data.batch_at(index)

    class FullIterator(grain.DatasetIterator):  # type: ignore[misc]  # as above
        def __init__(self, batches: Iterator[Any]) -> None:
            super().__init__()
            self._batches = batches

        def __next__(self) -> Any:
            return next(self._batches)

        def get_state(self) -> dict[str, Any]:
            return {}

        def set_state(self, state: Any) -> None:
            raise NotImplementedError("a trial never goes back")

    class FullIter(grain.IterDataset):  # type: ignore[misc]  # as above
        def __init__(self, data: Grain, steps: int) -> None:
            super().__init__()
            self._data, self._steps, self._is_looked_at, self._is_over = data, steps, False, data._is_over

        def __iter__(self) -> Any:
            # Keras looks at two batches before it trains (Keras 3.15 `GrainDatasetAdapter`): that needs no new processes
            opening = () if self._is_looked_at else itertools.islice(self._data.look(), _LOOKED_AT)
            self._is_looked_at = True
            made = repeated(self._data.full_batches, self._steps)
            return FullIterator(itertools.chain(opening, made if self._is_over is None else self._until_over(made)))

        def _until_over(self, made: Iterator[Any]) -> Iterator[Any]:
            """Yield as many batches as `made` would; once the run is over, repeat one."""
            for passed in range(self._steps):
                if self._is_over.value:
                    yield from itertools.repeat(self._data.batch(), self._steps - passed)
                    return
                yield next(made)

    return FullMap, FullIter
