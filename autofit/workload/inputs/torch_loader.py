"""`torch.utils.data.DataLoader` as input, on every backend; its workers are processes, each with
batches ahead.
"""

from __future__ import annotations

import copy
import functools
import multiprocessing
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from autofit.records.knobs import FitConfig
from autofit.workload.inputs.fit_input import (
    BatchMaker,
    FitInput,
    call_reported,
    repeated,
)
from autofit.workload.inputs.knobs import PREFETCH_FACTOR, has_base
from autofit.workload.inputs.torch_streams import is_split

_READ_WHOLE = (
    "each process would read the whole stream; "
    "split it by torch.utils.data.get_worker_info()"
)


class TorchLoader(FitInput):
    """The user's DataLoader with one config applied; `fit` receives a copy with the required number
    of full batches.
    """

    kind = "torch DataLoader"
    source = "the torch DataLoader"
    factory = (
        "batch_size, num_workers, prefetch_factor, persistent_workers",
        "DataLoader(dataset, batch_size, num_workers=num_workers, prefetch_factor=prefetch_factor, "
        "persistent_workers=persistent_workers)",
    )
    tunes = ("batch_size", "workers", "prefetch_factor")
    own_names: ClassVar = {"workers": "num_workers"}
    has_processes = True
    forks_workers = True
    leaves_workers = True  # torch waits seconds for workers whose batches nobody takes
    recognises = staticmethod(
        lambda data: has_base(data, "torch.utils.data", "DataLoader")
    )

    def _open(self) -> None:
        data = self._data
        self._require_passed_on("num_workers", self._config.workers, "the DataLoader")
        if data.num_workers > 0:  # otherwise there is no prefetch_factor
            self._require_passed_on(
                "prefetch_factor", self._config.prefetch_factor, "the DataLoader"
            )
        factor = data.prefetch_factor or self._config.prefetch_factor or PREFETCH_FACTOR
        self.applied = FitConfig(None, data.num_workers, None, True, factor)
        # the counter's lock must be of the loader's multiprocessing context: its workers cannot
        # receive another one
        self._processes = data.multiprocessing_context or multiprocessing
        self._made = self._shared("q")
        # a stream has no length
        self.epoch_batches = operator.length_hint(data) or None
        self._keep_first(self._epoch())

    def knobs(self, named: Mapping[str, str]) -> dict[str, str]:
        # Keras makes no queue for it
        return {knob: name for knob, name in named.items() if knob != "max_queue_size"}

    def kept(self, knobs: Mapping[str, str]) -> dict[str, str]:
        # heavy: must stay out of the parent
        from torch.utils.data import IterableDataset

        is_stream = isinstance(self._data.dataset, IterableDataset)
        is_whole = "workers" in knobs and is_stream and not is_split(self._data)
        return {"workers": _READ_WHOLE} if is_whole else {}

    def sample_count(self) -> int | None:
        samples = super().sample_count()
        sampler = self._data.sampler
        if samples is None or self._data.batch_size is None:
            return samples
        return min(samples, len(sampler)) if hasattr(sampler, "__len__") else samples

    def fit_arguments(self, steps: int) -> dict[str, Any]:
        loader = self._copy(batches=steps)
        if operator.length_hint(loader) == steps:
            return {"x": loader}
        return {"x": loader, "steps_per_epoch": steps}

    def _epoch(self) -> Any:
        return self._copy(
            num_workers=0, prefetch_factor=None, persistent_workers=False, timeout=0
        )

    def _copy(self, *, batches: int | None = None, **changes: Any) -> Any:
        """Return a copy of the loader that counts its batches and reports the errors of the dataset
        and `collate_fn`.
        """
        # an epoch has `batches` full batches; an iterable dataset keeps its length; `changes` are
        # attributes of the copy
        # heavy: must stay out of the parent
        from torch.utils.data import IterableDataset

        loader = copy.copy(self._data)
        watched = _Watched(
            loader, BatchMaker(self._report_error, self._made, self._is_over)
        )
        changes["collate_fn"] = watched.collate
        if not isinstance(loader.dataset, IterableDataset):
            drawn = "sampler" if loader.batch_sampler is None else "batch_sampler"
            changes |= {"dataset": watched, "batch_size": None, "drop_last": False}
            if batches is not None:
                changes[drawn] = _Repeated(getattr(loader, drawn), batches)
        # A DataLoader refuses to have these set, because an iterator of it may have read them; the
        # copy has none.
        vars(loader).update(changes, _iterator=None)
        return loader


@dataclass
class _Repeated:
    """The full batches of a sampler; it starts over until there are `count` batches."""

    sampler: Any
    count: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        return repeated(self._full_batches, self.count)

    def _full_batches(self) -> Iterator[Any]:
        full = 0
        for batch in self.sampler:
            size = len(batch) if hasattr(batch, "__len__") else 1
            full = full or size  # the first batch is full
            if size >= full:
                yield batch


class _Watched:
    """The dataset and the `collate_fn` of a loader, called by a `BatchMaker`."""

    def __init__(self, loader: Any, maker: BatchMaker) -> None:
        self._dataset = loader.dataset
        self._collate = loader.collate_fn
        self._maker = maker

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the dataset: `worker_init_fn` may read any, and DataLoader checks
        for `__getitems__`.
        """
        if name == "__getitems__":
            return functools.partial(self._get, self._dataset.__getitems__)
        if name.startswith("__") or name == "_dataset":
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        return self._get(self._dataset.__getitem__, index)

    def _get(self, get: Callable[[Any], Any], index: Any) -> Any:
        if self._maker.repeats:
            return ()
        return call_reported(self._maker.report_error, get, index)

    def collate(self, samples: Any) -> Any:
        return self._maker.make(self._collate, samples)
