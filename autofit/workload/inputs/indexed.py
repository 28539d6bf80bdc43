"""Datasets with `__getitem__`, whichever Keras they are for."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from autofit.errors import UsageError
from autofit.records.trial import FitConfig
from autofit.workload.inputs.batch import samples_of
from autofit.workload.inputs.fit_input import FitInput


class IndexedInput(FitInput):
    """The user's dataset under one config; `fit` sees it through a proxy of the wanted length."""

    def __init__(
        self, data: Any, config: FitConfig, report_error: Callable[[BaseException], None], reopen: Callable[[], Any] | None
    ) -> None:
        self._data, self._report_error = data, report_error
        self._length = self._batch_count()
        if self._length == 0:
            raise UsageError(f"the {self.kind} has length 0: there is no batch to train on")
        self._proxies: list[Any] = []
        self._keep_first(lambda: data[0], f"__getitem__(0) of the {self.kind}", config.batch_size)

    @abstractmethod
    def _batch_count(self) -> int | None:
        """Batches in an epoch; None for an endless dataset."""

    @abstractmethod
    def _proxy(self, length: int) -> Any:
        """The dataset with another length, in batches (`wrappers.DatasetProxy`)."""

    def sample_count(self) -> int | None:
        """Batches times samples a batch; None for an endless dataset."""
        return None if self._length is None else self._length * self.batch_samples

    def last_batch_samples(self) -> int | None:
        """The length of the last batch, which is made for it."""
        if self._length is None:
            return None
        last = self._as_batch(self._data[self._length - 1], f"the {self.kind}")
        return samples_of(last, None)

    def fit_arguments(self, steps: int) -> dict[str, Any]:
        """One epoch of so many steps."""
        return {"x": self._counted(steps)}

    def validation_arguments(self, steps: int) -> dict[str, Any]:
        """One epoch of so many steps, or of those that the dataset has if they are fewer."""
        return {"validation_data": self._counted(steps if self._length is None else min(steps, self._length))}

    def look(self) -> Iterator[Any]:
        """Every batch in turn, made in this process; without end for an endless dataset."""
        indices = itertools.count() if self._length is None else range(self._length)
        return (self._as_batch(self._data[index], f"the {self.kind}") for index in indices)

    def batches_made(self) -> int | None:
        """Batches that `__getitem__` has returned, in all threads and processes."""
        return sum(int(proxy.batches_made()) for proxy in self._proxies)

    def _counted(self, length: int) -> Any:
        """A proxy whose batches count in `batches_made`."""
        self._proxies.append(self._proxy(length))
        return self._proxies[-1]
