"""The interface between a trial's process and a Keras backend."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from autofit.records.description import Footprint
from autofit.records.machine import Device, Placement
from autofit.records.states import FailureKind


class StepEstimator(Protocol):
    """A traced train step."""

    optimizer_bytes: int
    """Bytes of the variables that the step uses beside the model's own."""
    uses_model_optimizer: bool
    """Whether the step uses the optimizer that `compile` was given."""

    def estimates(self, batch_sizes: Sequence[int], *, compile_all: bool) -> Iterator[Footprint]:
        """Yield the device memory of a step for these batch sizes, each as soon as it is known.

        Where a better method takes longer, the estimates of the quick one come first, and those of the better one for the
        first two sizes only unless `compile_all`.

        Raises:
            Exception: it cannot be estimated for this model.
        """


class Backend(Protocol):
    """A Keras backend as a trial's process uses it; the module that implements it must not load the backend on import."""

    name: str
    oom_lines: re.Pattern[str]
    """Matches a log line that reports a failed allocation for good; the group `report` is what to quote."""
    shortage_lines: re.Pattern[str]
    """Matches a log line that reports too little device memory, for good or not; the group `report` is what to quote."""
    fallback_lines: re.Pattern[str]
    """Matches a log line that reports a slower algorithm chosen for lack of memory, the slow zone just below the limit."""
    suspects: re.Pattern[str]
    """Matches an error that too little device memory causes, among other things: a line of `shortage_lines` decides."""
    outside_pool: re.Pattern[str]
    """Matches an error of a library that found no memory beside the pool, and a log line of a pool that got less than its
    limit: a smaller limit helps."""
    limits_cpu: bool
    """Whether the memory of steps on a CPU can be limited, and is counted; otherwise it is host memory like any other."""
    steps_are_async: bool
    """Whether Keras goes on before a step is over, unless a callback looks at each batch."""
    steps_ahead: int
    """Steps that may be under way at once on a CPU, each with its batch, beyond the one that runs."""
    uses_tfdata: bool
    """Whether Keras turns every input into a `tf.data.Dataset`."""
    distribution: str
    """The class that trains one model on several devices of a host, a share of each batch on each; empty without one."""
    needs_even_batches: bool
    """Whether a batch that the devices cannot share evenly ends the training, wherever it comes in an epoch."""

    def environment(self, placement: Placement, cache: Path) -> dict[str, str]:
        """Return the variables to set before the backend is imported, so that it uses these devices.

        `cache` is a folder for what its processes compile.
        """

    def preload(self) -> None:
        """Import the backend without running an operation."""

    def set_limit(self, placement: Placement, limit_bytes: int | None) -> None:
        """Enforce the limit on each device; called in a trial's process before its first operation."""

    def distributing(self, placement: Placement) -> AbstractContextManager[Any]:
        """Return the context in which a model is built that trains on all of these devices, by `distribution`."""

    def problems(self, device: Device | None, limit_bytes: int | None) -> tuple[str, ...]:
        """Return what keeps trials on this device, under this limit, from being what they should be, in sentences."""

    def pool_bytes(self, device: Device | None) -> int | None:
        """Return the device memory that a program without a limit would have of what is free now; None if unknown."""

    def has_started(self) -> bool:
        """Return whether an operation has run: before, reading memory would keep the user from configuring the backend."""

    def start(self) -> None:
        """Run an operation, so that a process has the threads that it has while it trains."""

    def peak_bytes(self, placement: Placement) -> int | None:
        """Return the peak of device memory since the start or `reset_peak`, bytes; None if the backend keeps no count.

        Of several GPUs it is that of the one with the highest.
        """

    def reset_peak(self, placement: Placement) -> None:
        """Reset the peak to what is in use now, where the backend can; call it only where `peak_bytes` is not None."""

    def retries(self, placement: Placement) -> int:
        """Return how often the allocator gave back what it kept to find room: a step below the limit that is slow."""

    def end_of(self, logs: Any) -> Callable[[], None] | None:
        """Return what waits until the step that returned these logs just now is over; None where it is."""

    def takes_turns(self, device: Device | None) -> bool:
        """Return whether data without a queue is made only while no step runs."""

    def process_problem(self, device: Device | None) -> str | None:
        """Return why Keras's worker processes must not be tried, in a sentence; None where they may."""

    def estimator(
        self,
        model: Any,
        batch: Any,
        device: Device | None,
        limit_bytes: int | None,
        multiple_of: int | None = 1,
        data_tensors: Sequence[int] = (),
    ) -> StepEstimator:
        """Trace a train step without running it, which builds what is not built yet; returns an estimator of its memory.

        Args:
            model: compiled.
            batch: arrays in the structure that Keras hands to `train_step`.
            device: the accelerator, None for the CPU.
            limit_bytes: the device's limit; None without one.
            multiple_of: trace for some multiple of this batch size, from which any other is estimated; None to trace for
                the batch's own size.
            data_tensors: bytes of each tensor of the data, which the device holds beside the step.

        Raises:
            Exception: the model's code fails when it is traced for such a batch.
        """

    def settings(self) -> dict[str, str]:
        """Return the versions and switches that affect a step's speed and memory, without loading the backend."""

    def exhausted(self, error: BaseException) -> FailureKind | None:
        """Return which memory an exception reports to have run out, DEVICE_OOM or HOST_OOM; None if it reports none."""

    def versions(self) -> dict[str, str]:
        """Return the versions that affect a step's speed and memory, as the loaded backend reports them."""
