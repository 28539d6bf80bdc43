"""The interface of every kind of input: training or validation data under one config."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from autofit.records.trial import FitConfig
from autofit.workload.inputs.batch import checked, dense, mapped, samples_of


@dataclass(frozen=True)
class ArrayBytes:
    """Memory of arrays, bytes.

    Attributes:
        mapped: arrays read from files while training, which are not in the process before.
        tensors: the copies that `fit` trains on, in the order in which it makes them.
        conversion: copies that exist only while the tensors are made.
    """

    mapped: int = 0
    tensors: tuple[int, ...] = ()
    conversion: int = 0

    def then(self, other: ArrayBytes) -> ArrayBytes:
        """Both, the other copied later: its tensors do not exist yet while the first are copied."""
        conversion = max(self.conversion - sum(other.tensors), other.conversion)
        return ArrayBytes(self.mapped + other.mapped, self.tensors + other.tensors, conversion)


class FitInput(ABC):
    """Training or validation data under one `FitConfig`, in a trial's process.

    Args:
        data: the user's object, or what the user's factory returned.
        config: the knobs that the factory was given, and those that are arguments of `fit`.
        report_error: called with errors of the user's code while batches are made (in a thread or another process).
        reopen: the factory with its arguments; None for arrays.

    Raises:
        UsageError: there is no batch, or the data does not have the knobs that it was given.
        UnsupportedInputError: a batch holds something that Keras does not take.
        Exception: an error of the user's code for the first batch.
    """

    kind: ClassVar[str]
    fit_knobs: ClassVar[tuple[str, ...]] = ()
    """The knobs that are arguments of `fit`, rather than of the factory."""
    ends_by_itself: ClassVar[bool] = True
    """Whether `fit` ends after exactly the steps that `fit_arguments` was asked for."""
    one_fit: bool = False
    """Whether each call of `fit` copies the data, so that a second call takes memory that the user's run does not."""
    autotunes: ClassVar[bool] = False
    """Whether workers and queue may be AUTOTUNE."""
    has_processes: ClassVar[bool] = False
    """Whether its workers are always processes, each of which makes batches ahead."""
    of_fixed_size: bool = False
    """Whether all batches have the same number of samples, which a traced train step may rely on."""
    part_count: int = 0
    """Arrays in the tuple that the user gives: 1 for (x,), 2 for (x, y); 0 without a tuple."""
    batch_samples: int
    """Samples in a full batch."""
    applied: FitConfig
    """The knobs as they are in the data, whoever set them; None for those that it does not have."""
    batch_seconds: float = 0.0
    """Time that one producer took for the first batch; 0 if none of the user's code runs."""
    _batch: Any

    def __init__(
        self, data: Any, config: FitConfig, report_error: Callable[[BaseException], None], reopen: Callable[[], Any] | None
    ) -> None:
        self._data, self._config, self._report_error, self._reopen = data, config, report_error, reopen
        self._open()

    @abstractmethod
    def _open(self) -> None:
        """Set `applied` and `batch_samples`, and check the data."""

    @staticmethod
    @abstractmethod
    def recognises(data: Any) -> bool:
        """Whether `data` is of this kind."""

    def knobs(self, named: Mapping[str, str]) -> dict[str, str]:
        """The knobs with an effect, each with its name in the factory or in `fit`; `named` are those of the factory."""
        return dict(named)

    def batch(self) -> Any:
        """One full batch in the structure that Keras hands to `train_step`; its dense leaves are NumPy arrays."""
        return self._batch

    def as_step_data(self, batch: Any) -> Any:
        """A batch as the user's data gives it, in the structure that Keras hands to `train_step`."""
        return batch

    @abstractmethod
    def sample_count(self) -> int | None:
        """Samples in one epoch, counting the last batch as full; None if unknown."""

    def last_batch_samples(self) -> int | None:
        """Samples in the last batch of an epoch; None if unknown or endless."""
        return None

    @abstractmethod
    def fit_arguments(self, steps: int) -> dict[str, Any]:
        """Arguments that make `fit` train on full batches for about `steps` steps (some inputs take more)."""

    @abstractmethod
    def validation_arguments(self, steps: int) -> dict[str, Any]:
        """Arguments that make `fit` validate for at most `steps` steps."""

    def pipeline_arguments(self, steps: int) -> dict[str, Any]:
        """Arguments that make `fit` run only the input pipeline for about `steps` steps."""
        return self.fit_arguments(steps)

    def look(self) -> Iterator[Any]:
        """The batches of an epoch in the form of `batch`, to compare their shapes; none if they cannot differ."""
        return iter(())

    def array_bytes(self) -> ArrayBytes:
        """The memory of arrays that `fit` reads or copies; nothing for data that is made batch by batch."""
        return ArrayBytes()

    def batches_made(self) -> int | None:
        """Batches that the user's code has made so far, in all threads and processes; None if unknown."""
        return None

    def _keep_first(self, take: Callable[[], Any], source: str, batch_size: int | None) -> None:
        """Take, time and check the first batch; `batch_size` is the knob that the data was given, if any."""
        started = time.perf_counter()
        batch = take()
        self.batch_seconds = time.perf_counter() - started
        self._batch = self._as_batch(batch, source)
        self.batch_samples = samples_of(self._batch, batch_size)

    def _as_batch(self, raw: Any, source: str) -> Any:
        """A batch as the user's data gives it, checked, in the form of `batch`."""
        return mapped(self.as_step_data(checked(raw, source)), dense)


def packed(parts: Iterable[Any]) -> Any:
    """Parts of a batch as `fit` packs them: x without targets is not in a tuple, unless it is a tuple or list of arrays."""
    whole = tuple(parts)
    return whole[0] if len(whole) == 1 and not isinstance(whole[0], tuple | list) else whole


def call_reported(report_error: Callable[[BaseException], None], function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the user's; report its error before raising it."""
    try:
        return function(*arguments)
    except BaseException as error:
        report_error(error)
        raise
