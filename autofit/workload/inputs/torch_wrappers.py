"""Copies of a torch DataLoader for a trial's process (this module loads torch)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

_SAME = ("pin_memory", "timeout", "worker_init_fn", "generator", "in_order", "pin_memory_device")


def copy_of(
    loader: Any,
    made: Any,
    report_error: Callable[[BaseException], None],
    batches: int | None,
    num_workers: int | None,
) -> Any:
    """A loader of the same data.

    Args:
        loader: the user's.
        made: a shared number, to which each batch that is put together adds one.
        report_error: called with what the dataset or `collate_fn` raises, in any process.
        batches: full batches of an epoch, from the beginning again where there are fewer; None for those of the loader.
            A stream is left as long as it is.
        num_workers: worker processes; None for as many as the loader has.
    """
    workers = loader.num_workers if num_workers is None else num_workers
    arguments = {name: getattr(loader, name) for name in _SAME if getattr(loader, name, None) not in (None, "")}
    if workers:
        arguments |= {
            "prefetch_factor": loader.prefetch_factor,
            "persistent_workers": loader.persistent_workers,
            "multiprocessing_context": loader.multiprocessing_context,
        }
    else:
        arguments |= {"timeout": 0}
    if isinstance(loader.dataset, IterableDataset):
        arguments |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    elif loader.batch_sampler is None:
        arguments |= {
            "batch_size": None,
            "sampler": loader.sampler if batches is None else _Repeated(loader.sampler, batches),
        }
    else:
        sampler = loader.batch_sampler
        arguments["batch_sampler"] = sampler if batches is None else _Repeated(sampler, batches)
    dataset = loader.dataset if isinstance(loader.dataset, IterableDataset) else _Reporting(loader.dataset, report_error)
    collate = _Counting(loader.collate_fn, made, report_error)
    return DataLoader(dataset, num_workers=workers, collate_fn=collate, **arguments)


class _Repeated:
    """The full batches of a sampler, from the beginning again until there are enough."""

    def __init__(self, sampler: Any, count: int) -> None:
        self._sampler, self._count = sampler, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        passed = full = 0
        while passed < self._count:
            before = passed
            for batch in self._sampler:
                size = len(batch) if hasattr(batch, "__len__") else 1
                full = full or size
                if size < full:
                    continue
                yield batch
                passed += 1
                if passed == self._count:
                    return
            if passed == before:
                return


class _Reporting:
    """A dataset that reports what it raises."""

    def __init__(self, dataset: Any, report_error: Callable[[BaseException], None]) -> None:
        self._dataset, self._report_error = dataset, report_error
        if hasattr(dataset, "__getitems__"):
            self.__getitems__ = self._items

    def __getattr__(self, name: str) -> Any:
        """What `worker_init_fn` may ask of the dataset."""
        if name.startswith("__") or name == "_dataset":
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        return self._called(self._dataset.__getitem__, index)

    def _items(self, indices: Any) -> Any:
        return self._called(self._dataset.__getitems__, indices)

    def _called(self, get: Callable[[Any], Any], index: Any) -> Any:
        try:
            return get(index)
        except BaseException as error:
            self._report_error(error)
            raise


class _Counting:
    """A `collate_fn` that counts its batches, and reports what it raises."""

    def __init__(self, collate: Callable[[Any], Any], made: Any, report_error: Callable[[BaseException], None]) -> None:
        self._collate, self._made, self._report_error = collate, made, report_error

    def __call__(self, samples: Any) -> Any:
        try:
            batch = self._collate(samples)
        except BaseException as error:
            self._report_error(error)
            raise
        with self._made.get_lock():
            self._made.value += 1
        return batch
