"""Training or validation data under one config: what every kind of input offers, with defaults that most share."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from autofit.records.trial import FitConfig
from autofit.workload.inputs.batch import checked, first_leaf


class FitInput(ABC):
    """Training or validation data under one `FitConfig`, in a trial's process.

    Args:
        data: what the user hands over, or what the user's factory returned.
        config: the knobs that the factory was given, and those that are arguments of `fit`.
        report_error: called with what the user's code raises while batches are made (in a thread or another process).
        reopen: the factory with its arguments; None for arrays.

    Raises:
        UsageError: there is no batch, or the data did not take over the knobs.
        UnsupportedInputError: a batch is not (x, y) or (x, y, sample_weight) of arrays.
        Exception: what the user's code raises for the first batch.
    """

    kind: ClassVar[str]
    fit_knobs: ClassVar[tuple[str, ...]] = ()
    """The knobs that are arguments of `fit`, rather than of the factory."""
    ends_by_itself: ClassVar[bool] = True
    """Whether `fit` ends after exactly the steps that `fit_arguments` was asked for."""
    autotunes: ClassVar[bool] = False
    """Whether workers and queue may be AUTOTUNE."""
    batch_samples: int
    """Samples in a full batch."""
    applied: FitConfig
    """The knobs as they are in the data, whoever set them; those that it does not have are None."""
    batch_seconds: float = 0.0
    """How long one producer took for the first batch; 0 where no code of the user's runs."""
    _batch: tuple[Any, ...]

    @abstractmethod
    def __init__(
        self, data: Any, config: FitConfig, report_error: Callable[[BaseException], None], reopen: Callable[[], Any] | None
    ) -> None: ...

    @staticmethod
    @abstractmethod
    def recognises(data: Any) -> bool:
        """Whether `data` is of this kind."""

    def knobs(self, named: Mapping[str, str]) -> dict[str, str]:
        """The knobs that do something, each with its name, in the factory or in `fit`; `named` are the factory's."""
        return dict(named)

    def batch(self) -> tuple[Any, ...]:
        """One full batch of arrays, (x, y) or (x, y, sample_weight)."""
        return self._batch

    @abstractmethod
    def sample_count(self) -> int | None:
        """Samples in one epoch, the last batch counted as full; None if unknown."""

    @abstractmethod
    def fit_arguments(self, steps: int) -> dict[str, Any]:
        """Arguments that make `fit` train on full batches for about so many steps (an input may have more)."""

    @abstractmethod
    def validation_arguments(self, steps: int) -> dict[str, Any]:
        """Arguments that make `fit` validate for at most so many steps."""

    def look(self) -> Iterator[tuple[Any, ...]]:
        """The batches of an epoch in turn, to compare their shapes; none if they cannot differ."""
        return iter(())

    def batches_made(self) -> int | None:
        """How many batches the user's code has produced so far, in all threads and processes; None if unknown."""
        return None

    def _keep_first(
        self, take: Callable[[], Any], source: str, to_arrays: Callable[[Any], Any] = lambda batch: batch
    ) -> None:
        """Take the first batch, measure how long that takes, and check it; `source` names its origin in errors."""
        started = time.perf_counter()
        batch = take()
        self.batch_seconds = time.perf_counter() - started
        self._batch = checked(to_arrays(batch), source)
        self.batch_samples = len(first_leaf(self._batch))
