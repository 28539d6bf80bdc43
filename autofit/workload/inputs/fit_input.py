"""The interface of every kind of input: training or validation data with one config applied."""

from __future__ import annotations

import errno
import itertools
import multiprocessing
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from autofit.errors import UsageError
from autofit.records.knobs import KNOBS, FitConfig
from autofit.workload.inputs.batch import (
    dense,
    is_array,
    leaves,
    length_of,
    mapped,
    samples_of,
)
from autofit.workload.inputs.knobs import fixed_in, knobs_of, switches_of

# gets each error of the user's code while batches are made
ReportError = Callable[[BaseException], None]
# value of `is_over` if workers may repeat a single sample instead of a batch
ONE_SAMPLE = 2


class BatchError(UsageError):
    """The data makes no batch that Keras takes."""


@dataclass(frozen=True)
class ArrayBytes:
    """Memory that arrays take while training, in bytes."""

    # arrays that are mapped from files; training reads them into memory
    mapped: int = 0
    # the copies that `fit` trains on, in the order in which it makes them
    tensors: tuple[int, ...] = ()
    # temporary copies that exist only while `fit` makes the tensors
    conversion: int = 0

    def then(self, other: ArrayBytes) -> ArrayBytes:
        """Return the memory of these arrays together with that of `other`, which `fit` copies after
        them.
        """
        # while these arrays are copied, the tensors of `other` do not exist yet, which leaves room
        # for the temporary copies
        return ArrayBytes(
            self.mapped + other.mapped,
            self.tensors + other.tensors,
            max(self.conversion - sum(other.tensors), other.conversion),
        )


@dataclass(eq=False)
class BatchMaker:
    """Calls the user's code that makes batches, in any thread or process: counts the batches and
    reports its errors.
    """

    # While the pipeline runs alone, each thread or process repeats its last batch, or its first
    # sample, once `is_over` is set: a `fit` that is interrupted would leave workers behind that go
    # on making batches.

    report_error: ReportError
    # a `multiprocessing.Value`: the batches made by all threads and processes
    made: Any
    # a `multiprocessing.Value`: 0, 1 or ONE_SAMPLE; None if the pipeline does not run alone
    is_over: Any = None
    _last: Any = None

    @property
    def repeats(self) -> bool:
        return self._last is not None and bool(self.is_over.value)

    def make(self, function: Callable[..., Any], given: Any) -> Any:
        """Return the batch that a function of the user makes; or the last one, if the run is
        over.
        """
        if self.repeats:
            is_one = self.is_over.value == ONE_SAMPLE
            return mapped(self._last, _first_entry) if is_one else self._last
        batch = call_reported(self.report_error, function, given)
        with self.made.get_lock():
            self.made.value += 1
        if self.is_over is not None:
            self._last = batch
        return batch


class FitInput(ABC):
    """Training or validation data with one `FitConfig` applied, in a trial's process."""

    kind: ClassVar[str]
    recognises: ClassVar[staticmethod[[Any], bool]]  # whether data is of this kind
    source: ClassVar[str]  # what makes the batches, for error messages
    # parameters and return value of a function that makes such data, as an example
    factory: ClassVar[tuple[str, str]]
    # knobs that such data usually takes
    tunes: ClassVar[tuple[str, ...]] = ("batch_size",)
    # what its library calls the knobs, where that is not Keras's name
    own_names: ClassVar[Mapping[str, str]] = {}
    # whether `fit` ends after exactly the steps that `fit_arguments` was given
    ends_by_itself = True
    # whether Keras starts the workers: no worker and one are the same to it, and they are threads
    # under any name unless `use_multiprocessing` is set
    keras_starts_workers = False
    # whether an interrupted `fit` leaves workers behind, which go on making batches
    leaves_workers = False
    # whether each call of `fit` copies the data, so that a second call takes memory that the user's
    # run does not take
    one_fit = False
    autotunes = False  # whether `workers` and `max_queue_size` may be AUTOTUNE
    # whether `fit` makes the batches, so that their size is an argument of it
    fit_makes_batches = False
    # whether the user's code says how many batches there are, which may not follow their size
    computes_length = False
    # whether, without a queue, a batch may be made only while no step runs
    takes_turns = True
    # whether the workers are forked from the process that trains, though Keras does not start them
    forks_workers = False
    # whether the workers are always processes, each of which makes batches ahead
    has_processes = False
    # whether all batches have one number of samples: a traced train step may rely on it
    of_fixed_size = False
    # whether `sample_count` knows how many samples a partial last batch has
    counts_last_batch = True
    # of the tuple that the user gives: 1 for (x,), 2 for (x, y); 0 if it is not a tuple
    part_count = 0
    batch_samples: int  # in a full batch
    # the knobs that the data has, whoever set them; None for a knob that it does not have
    applied: FitConfig
    # that the first batch took in a single thread; 0 if making a batch runs no user code
    batch_seconds = 0.0
    # in an epoch of a trial, all of them full; None if unknown or endless
    epoch_batches: int | None = None
    # the number of samples that `fit` has taken; None if each step takes a full batch
    taken: Any = None
    # a `multiprocessing.Value` that counts the batches made; None if they are not counted
    _made: Any = None
    _is_over: Any = None  # of `BatchMaker`, while the pipeline runs alone
    _processes: Any = multiprocessing  # the context that starts the workers

    # `config` holds the knobs that were passed to the factory, and those that are arguments of
    # `fit`. `report_error` may be called in another thread or process. `reopen` is a partial that
    # makes the data again; None for arrays and objects.
    def __init__(
        self, data: Any, config: FitConfig, report_error: ReportError, reopen: Any
    ) -> None:
        self._data = data
        self._config = config
        self._report_error = report_error
        self._reopen = reopen
        self._open()

    @abstractmethod
    def _open(self) -> None:
        """Set `applied` and `batch_samples`, and check the data."""

    def _shared(self, kind: str) -> Any:
        """Return a number that all processes share, 0 at first."""
        try:
            return self._processes.Value(kind, 0)
        except OSError as error:
            if error.errno == errno.ENOSPC:  # the trial has filled /dev/shm: an outcome
                raise
            problem = f"no memory can be shared with the workers of the data: {error.strerror}"
            raise UsageError(f"{problem}; make /dev/shm writable") from None

    def not_taken(self, data: Any, fixed: Mapping[str, Any]) -> dict[str, str]:
        """Return why knobs that data of this kind may take are not those of `data`: the reason, by
        their names.
        """
        given = fixed_in(data, fixed)
        taken = knobs_of(data, fixed)
        missing: dict[str, list[str]] = {}
        for knob in self.tunes:
            names = KNOBS[knob].parameters
            if knob in taken or given & {*names}:
                continue
            # as such data names it
            usual = self.factory[0].split(", ")
            name = next((name for name in names if name in usual), knob)
            reason = f"the data takes no such argument; {self._remedy(data, knob)}"
            if name in switches_of(data):
                reason = "the data takes it as true or false, not as a number"
            missing.setdefault(reason, []).append(name)
        return {", ".join(knobs): reason for reason, knobs in missing.items()}

    def _remedy(
        self, data: Any, knob: str
    ) -> str:  # for data that does not take this knob
        if callable(data):
            return "add a parameter with this name"
        return "pass a function that makes it, with this parameter"

    def knobs(self, named: Mapping[str, str]) -> dict[str, str]:
        """Return the knobs that have an effect, each with its name in the factory (from `named`) or
        in `fit`.
        """
        return dict(named)

    def kept(self, knobs: Mapping[str, str]) -> dict[str, str]:
        """Return why some of the knobs must keep the values that the user gives them, by knob."""
        return {}

    def batch(self) -> Any:
        """Return one full batch in the structure that Keras passes to `train_step`; its dense
        leaves are NumPy arrays.
        """
        return self._batch

    def as_step_data(self, batch: Any) -> Any:
        """Convert a batch of the user's data to the structure that Keras passes to `train_step`: a
        list becomes a tuple.
        """
        return tuple(batch) if isinstance(batch, tuple | list) else batch

    def sample_count(self) -> int | None:
        """Return the number of samples in one epoch, counting the last batch as full; None if
        unknown.
        """
        return self.epoch_batches and self.epoch_batches * self.batch_samples

    @abstractmethod
    def fit_arguments(self, steps: int) -> dict[str, Any]:
        """Return arguments that make `fit` train on full batches for about `steps` steps (more for
        some kinds of input).
        """

    def epoch_arguments(self, steps: int, epochs: int) -> dict[str, Any]:
        """Return arguments that make `fit` train for this number of epochs, each of which ends with
        the data.
        """
        return {**self.fit_arguments(steps), "epochs": epochs}

    def validation_arguments(self, steps: int) -> dict[str, Any]:
        """Return arguments that make `fit` validate on full batches for about `steps` steps."""
        arguments = self.fit_arguments(steps)
        return {
            "validation_data": arguments["x"],
            "validation_steps": arguments.get("steps_per_epoch"),
        }

    def pipeline_arguments(self, steps: int) -> dict[str, Any]:
        """Return arguments that make `fit` run only the input pipeline for about `steps` steps,
        until `end_pipeline`.
        """
        self._is_over = self._shared("b") if self.leaves_workers else None
        return self.fit_arguments(steps)

    def end_pipeline(self, *, one_sample: bool = False) -> None:
        """End the run of the pipeline alone; workers may repeat a single sample, which takes less
        time to pass on.
        """
        if self._is_over is not None:
            # a DataLoader passes on tensors, which are left whole
            self._is_over.value = (
                ONE_SAMPLE if one_sample and not self.has_processes else 1
            )
            self._is_over = None

    def without_targets(self) -> FitInput:
        """Return what `predict` takes of the data: it drops the targets of batches itself."""
        return self

    def split(self, share: float) -> tuple[FitInput, FitInput]:
        """Split off the last `share` of the samples for validation, as `validation_split` does."""
        raise UsageError(
            f"validation_split divides arrays, but the data is a {self.kind}; pass the validation "
            "data as validation",
            key="fit_kwargs.validation_split",
        )

    def user_batches(self) -> Iterator[Any]:
        """Yield the batches of an epoch, made in this process, in the form of `batch`; nothing if
        shapes cannot differ.
        """
        return map(self._as_batch, self._epoch())

    def _epoch(self) -> Iterable[Any]:
        return ()

    def array_bytes(self) -> ArrayBytes:
        """Return the memory of arrays that `fit` reads or copies; zero for data that is made batch
        by batch.
        """
        return ArrayBytes()

    def batches_made(self) -> int | None:
        """Return how many batches the user's code has made so far, in all threads and processes;
        None if unknown.
        """
        return None if self._made is None else int(self._made.value)

    def _keep_first(self, batches: Iterable[Any]) -> None:
        started = time.perf_counter()
        batch = next(iter(batches), None)
        self.batch_seconds = time.perf_counter() - started
        if batch is None:
            raise BatchError(
                f"{self.source} is empty; make it return at least one batch"
            )
        self._batch = self._as_batch(batch)
        self.batch_samples = samples_of(self._batch, self._config.batch_size)

    def _as_batch(self, raw: Any) -> Any:
        arrays = leaves(raw)
        if not all(map(is_array, arrays)) or not any(map(length_of, arrays)):
            names = ", ".join(type(leaf).__name__ for leaf in arrays) or "nothing"
            raise BatchError(
                f"{self.source} returned a batch of {names}. Return what Keras takes: arrays or "
                "tensors with at least one "
                "sample on the first axis, or tuples, lists or dicts of them"
            )
        return mapped(self.as_step_data(raw), dense)

    # whether the first axis of a batch does, and not, for example, nodes of graphs
    @property
    def _counts_samples(self) -> bool:
        return length_of(leaves(self._batch)[0]) == self.batch_samples

    def count_samples(self, batch_size: int) -> None:
        """Let `fit` train on full batches of several sizes from now on, and count their samples in
        `taken`.

        `batch_size` is the size that was asked for. Data whose batches workers make cannot count
        them here.
        """
        self.batch_samples = batch_size
        self.taken = np.zeros((), int)

    def _is_full(self, batch: Any) -> bool:
        if self.taken is not None:  # each batch is asked once, when `fit` takes it
            self.taken += length_of(leaves(batch)[0])
            return True
        return (
            not self._counts_samples
            or length_of(leaves(batch)[0]) >= self.batch_samples
        )

    def _batches_of(self, make: Callable[[], Iterable[Any]]) -> Iterator[Any]:
        """Yield the batches of an epoch that `make` begins; report the errors of the user's
        code.
        """
        batches = call_reported(self._report_error, lambda: iter(make()))
        while (
            batch := call_reported(self._report_error, next, batches, None)
        ) is not None:
            yield batch

    def _require_passed_on(self, name: str, asked: int | None, where: str) -> None:
        actual = getattr(self._data, name)
        if asked not in (None, actual):
            raise UsageError(
                f"the factory was called with {name}={asked}, but its {self.kind} has "
                f"{name}={actual}. "
                f"Pass {name} to {where}"
            )


def repeated(epoch: Callable[[], Iterable[Any]], count: int) -> Iterator[Any]:
    """Yield `count` batches, starting over after each epoch; stop early if an epoch has no
    batches.
    """
    passed = 0
    passed_before = -1
    while passed_before < passed < count:
        passed_before = passed
        for batch in itertools.islice(epoch(), count - passed):
            passed += 1
            yield batch


def call_reported(
    report_error: ReportError, function: Callable[..., Any], *arguments: Any
) -> Any:
    """Call one of the user's functions; if it fails, report the error and raise it again."""
    try:
        return function(*arguments)
    except BaseException as error:
        report_error(error)
        raise


def _first_entry(leaf: Any) -> Any:
    # tensors are left alone: in a forked process, operations on them may hang
    return (
        leaf[:1]
        if hasattr(leaf, "__array_interface__") and length_of(leaf) > 1
        else leaf
    )
