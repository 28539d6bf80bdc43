"""Python generators as input: a factory returns one, and `fit` draws batches from it in a single thread."""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Iterator
from typing import Any, ClassVar

from autofit.records.trial import FitConfig
from autofit.workload.inputs.fit_input import FitInput, repeated


class Generator(FitInput):
    """The full batches of a generator; when it ends, the factory is called for a new one."""

    kind: ClassVar[str] = "generator"
    source: ClassVar[str] = "the generator"

    def _open(self) -> None:
        self.applied, self._made = FitConfig(), multiprocessing.Value("q", 0)
        self._keep_first(self._data)

    @staticmethod
    def recognises(data: Any) -> bool:
        return isinstance(data, Iterator)

    def fit_arguments(self, steps: int) -> dict[str, Any]:
        return {"x": repeated(lambda: filter(self.is_full, self._epoch()), steps)}

    def validation_arguments(self, steps: int) -> dict[str, Any]:
        batches = itertools.islice(self._epoch(), steps)
        return {"validation_data": (batch for batch in batches)}  # of all iterators, Keras takes only generators

    def _epoch(self) -> Iterator[Any]:
        assert self._reopen is not None, "a ready-made generator was refused"
        for batch in self.batches_of(self._reopen):
            self._made.value += 1
            yield batch
