"""Training or validation data under one config: what every kind of input offers, with defaults that most share."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from autofit.records.trial import FitConfig
from autofit.workload.inputs.batch import checked, dense, mapped, samples_of


@dataclass(frozen=True)
class ArrayBytes:
    """Memory of arrays, bytes.

    `mapped` are read from files while training, and are not in the process before; `tensors` are the copies that `fit`
    trains on, in the order in which it makes them; `conversion` are copies that exist only while those are made.
    """

    mapped: int = 0
    tensors: tuple[int, ...] = ()
    conversion: int = 0

    def then(self, other: ArrayBytes) -> ArrayBytes:
        """Both, the other copied later: while the first are copied, the tensors of the other do not exist yet."""
        conversion = max(self.conversion - sum(other.tensors), other.conversion)
        return ArrayBytes(self.mapped + other.mapped, self.tensors + other.tensors, conversion)


class FitInput(ABC):
    """Training or validation data under one `FitConfig`, in a trial's process.

    Args:
        data: what the user hands over, or what the user's factory returned.
        config: the knobs that the factory was given, and those that are arguments of `fit`.
        report_error: called with what the user's code raises while batches are made (in a thread or another process).
        reopen: the factory with its arguments; None for arrays.

    Raises:
        UsageError: there is no batch, or the data did not take over the knobs.
        UnsupportedInputError: a batch holds something that Keras does not take.
        Exception: what the user's code raises for the first batch.
    """

    kind: ClassVar[str]
    fit_knobs: ClassVar[tuple[str, ...]] = ()
    """The knobs that are arguments of `fit`, rather than of the factory."""
    ends_by_itself: ClassVar[bool] = True
    """Whether `fit` ends after exactly the steps that `fit_arguments` was asked for."""
    one_fit: bool = False
    """Whether each call of `fit` copies the data, so that a second call takes memory that the user's own run does not."""
    autotunes: ClassVar[bool] = False
    """Whether workers and queue may be AUTOTUNE."""
    has_processes: ClassVar[bool] = False
    """Whether its workers are always processes, each with batches ahead of its own."""
    of_fixed_size: bool = False
    """Whether all batches have the same number of samples, which a train step that is traced may rely on."""
    part_count: int = 0
    """Of arrays: how many the user gives in a tuple, 1 for (x,), 2 for (x, y); 0 for one that is not in a tuple."""
    batch_samples: int
    """Samples in a full batch."""
    applied: FitConfig
    """The knobs as they are in the data, whoever set them; those that it does not have are None."""
    batch_seconds: float = 0.0
    """How long one producer took for the first batch; 0 where no code of the user's runs."""
    _batch: Any

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

    def batch(self) -> Any:
        """One full batch in the structure that Keras hands to `train_step`; its dense leaves are NumPy arrays."""
        return self._batch

    def as_step_data(self, batch: Any) -> Any:
        """A batch as the user's data gives it, in the structure that Keras hands to `train_step`."""
        return batch

    @abstractmethod
    def sample_count(self) -> int | None:
        """Samples in one epoch, the last batch counted as full; None if unknown."""

    def last_batch_samples(self) -> int | None:
        """Samples in the last batch of an epoch; None if unknown, and for data without end."""
        return None

    @abstractmethod
    def fit_arguments(self, steps: int) -> dict[str, Any]:
        """Arguments that make `fit` train on full batches for about so many steps (an input may have more)."""

    @abstractmethod
    def validation_arguments(self, steps: int) -> dict[str, Any]:
        """Arguments that make `fit` validate for at most so many steps."""

    def pipeline_arguments(self, steps: int) -> dict[str, Any]:
        """Arguments that make `fit` run the pipeline alone for about so many steps."""
        return self.fit_arguments(steps)

    def look(self) -> Iterator[Any]:
        """The batches of an epoch in turn, as `batch`, to compare their shapes; none if they cannot differ."""
        return iter(())

    def array_bytes(self) -> ArrayBytes:
        """The memory of arrays that `fit` reads or copies; none for data that is made batch by batch."""
        return ArrayBytes()

    def batches_made(self) -> int | None:
        """How many batches the user's code has produced so far, in all threads and processes; None if unknown."""
        return None

    def _keep_first(self, take: Callable[[], Any], source: str, batch_size: int | None) -> None:
        """Take the first batch, measure how long that takes, and check it.

        Args:
            take: makes the batch.
            source: its origin, for errors.
            batch_size: the knob that the data was given; None without one.
        """
        started = time.perf_counter()
        batch = take()
        self.batch_seconds = time.perf_counter() - started
        self._batch = self._as_batch(batch, source)
        self.batch_samples = samples_of(self._batch, batch_size)

    def _as_batch(self, raw: Any, source: str) -> Any:
        """A batch as the user's data gives it, checked, in the form of `batch`."""
        return mapped(self.as_step_data(checked(raw, source)), dense)
