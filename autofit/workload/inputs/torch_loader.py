"""`torch.utils.data.DataLoader` as input: a factory returns one.

Its knobs are `batch_size`, `num_workers` and `prefetch_factor`. Its workers are processes, each of which makes
`prefetch_factor` batches ahead. Keras takes a DataLoader on every backend.
"""

from __future__ import annotations

import copy
import functools
import multiprocessing
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from autofit.records.trial import FitConfig
from autofit.workload.inputs.fit_input import FitInput, call_counted, call_reported, repeated
from autofit.workload.inputs.knobs import PREFETCH_FACTOR, is_torch_loader


class TorchLoader(FitInput):
    """The user's DataLoader with one config applied; `fit` receives a copy with the required number of full batches."""

    kind: ClassVar[str] = "torch DataLoader"
    source: ClassVar[str] = "the torch DataLoader"
    has_processes: ClassVar[bool] = True
    leaves_workers: ClassVar[bool] = True  # torch waits seconds for workers whose batches nobody takes
    recognises = staticmethod(is_torch_loader)

    def _open(self) -> None:
        data = self._data
        self._require_passed_on("num_workers", self._config.workers, "the DataLoader")
        if data.num_workers > 0:  # otherwise there is no prefetch_factor
            self._require_passed_on("prefetch_factor", self._config.prefetch_factor, "the DataLoader")
        factor = data.prefetch_factor or self._config.prefetch_factor or PREFETCH_FACTOR
        self.applied = FitConfig(None, data.num_workers, None, True, factor)
        # the counter's lock must be of the loader's multiprocessing context: its workers cannot receive another one
        self._processes = data.multiprocessing_context or multiprocessing
        self._made = self._processes.Value("q", 0)
        self._length = operator.length_hint(data) or None  # a stream has no length
        self._keep_first(self._epoch())

    def knobs(self, named: Mapping[str, str]) -> dict[str, str]:
        """Return the knobs of the factory without `max_queue_size`, because Keras makes no queue for a DataLoader."""
        return {knob: name for knob, name in named.items() if knob != "max_queue_size"}

    def sample_count(self) -> int | None:
        samples = super().sample_count()
        draws_samples = self._data.batch_size is not None and hasattr(self._data.sampler, "__len__")
        return min(samples, len(self._data.sampler)) if samples is not None and draws_samples else samples

    def fit_arguments(self, steps: int) -> dict[str, Any]:
        loader = self._copy(batches=steps)
        return {"x": loader} if operator.length_hint(loader) == steps else {"x": loader, "steps_per_epoch": steps}

    def validation_arguments(self, steps: int) -> dict[str, Any]:
        whole = self._length and self._length <= steps
        return {"validation_data": self._copy(), **({} if whole else {"validation_steps": steps})}

    def _epoch(self) -> Any:
        return self._copy(num_workers=0, prefetch_factor=None, persistent_workers=False, timeout=0)

    def _copy(self, *, batches: int | None = None, **changes: Any) -> Any:
        """Return a copy of the loader that counts its batches and reports the errors of the dataset and `collate_fn`.

        An epoch has `batches` full batches; an iterable dataset keeps its length. `changes` are attributes of the copy.
        """
        from torch.utils.data import IterableDataset  # heavy: must stay out of the parent

        loader = copy.copy(self._data)
        last = None if self._is_over is None else _Last(self._is_over)
        if not isinstance(loader.dataset, IterableDataset):
            drawn = "sampler" if loader.batch_sampler is None else "batch_sampler"
            reporting = _Reporting(loader.dataset, self._report_error, last)
            changes |= {"dataset": reporting, "batch_size": None, "drop_last": False}
            if batches is not None:
                changes[drawn] = _Repeated(getattr(loader, drawn), batches)
        collate = functools.partial(call_counted, self._made, self._report_error, loader.collate_fn)
        changes["collate_fn"] = collate if last is None else functools.partial(last.or_made, collate)
        # A DataLoader refuses to have these set, because an iterator of it may have read them; the copy has none.
        vars(loader).update(changes, _iterator=None)
        return loader


class _Repeated:
    """The full batches of a sampler; it starts over until there are `count` batches."""

    def __init__(self, sampler: Any, count: int) -> None:
        self._sampler, self._count = sampler, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return repeated(self._full_batches, self._count)

    def _full_batches(self) -> Iterator[Any]:
        full = 0
        for batch in self._sampler:
            size = len(batch) if hasattr(batch, "__len__") else 1
            full = full or size  # the first batch is full
            if size >= full:
                yield batch


class _Last:
    """The last batch of each worker, which it repeats once `is_over` is 1."""

    def __init__(self, is_over: Any) -> None:
        self._is_over, self._batch = is_over, None

    @property
    def repeats(self) -> bool:
        return self._batch is not None and bool(self._is_over.value)

    def or_made(self, collate: Callable[[Any], Any], samples: Any) -> Any:
        if not self.repeats:
            self._batch = collate(samples)
        return self._batch


class _Reporting:
    """A dataset that reports its errors; it makes no samples while the last batch is repeated."""

    def __init__(self, dataset: Any, report_error: Callable[[BaseException], None], last: _Last | None) -> None:
        self._dataset, self._report_error, self._last = dataset, report_error, last

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the dataset: `worker_init_fn` may read any, and DataLoader checks for `__getitems__`."""
        if name == "__getitems__":
            return functools.partial(self._made, self._dataset.__getitems__)
        if name.startswith("__") or name in ("_dataset", "_last"):
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        return self._made(self._dataset.__getitem__, index)

    def _made(self, get: Callable[[Any], Any], index: Any) -> Any:
        return () if self._last is not None and self._last.repeats else call_reported(self._report_error, get, index)
