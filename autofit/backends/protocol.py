"""The interface between a trial's process and a Keras backend."""

from __future__ import annotations

import json
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Protocol

from autofit.backends import exhaustion
from autofit.backends.keras_config import keras_settings
from autofit.errors import UsageError
from autofit.records.description import Footprint
from autofit.records.distribution import install_command
from autofit.records.machine import Device, Placement
from autofit.records.states import FailureKind


@dataclass(frozen=True)
class TrainStep:
    """A train step whose memory is to be estimated.

    `model` is compiled; it may be trained, and is thrown away afterwards. `batch` holds arrays in the structure that Keras
    passes to `train_step`. `device` is the accelerator, None for the CPU, and `limit_bytes` its limit. Batch sizes are
    multiples of `multiple_of`; None allows the batch's own size only. `data_tensors` are the bytes of each tensor of the
    data, which the device holds beside the step.
    """

    model: Any
    batch: Any
    device: Device | None
    limit_bytes: int | None
    multiple_of: int | None = 1
    data_tensors: Sequence[int] = ()


class StepEstimator(Protocol):
    """Estimates the device memory of a train step."""

    optimizer_bytes: int
    """Bytes of the variables that the step uses beside the model's own."""
    uses_model_optimizer: bool
    """Whether the step uses the optimizer that was passed to `compile`."""

    def estimates(self, batch_sizes: Sequence[int], *, compile_all: bool) -> Iterator[Footprint]:
        """Yield the device memory of a step for these batch sizes, each as soon as it is known.

        If a better method takes longer, the estimates of the quick method come first. The better method then covers the
        first two sizes, or all of them with `compile_all`.

        Raises:
            Exception: the memory cannot be estimated for this model.
        """


class Backend(ABC):
    """A Keras backend as used by a trial's process.

    A subclass implements the abstract methods and overrides the defaults that do not hold for it. Its module must not load
    the backend on import.
    """

    name: ClassVar[str]
    """Keras's name of the backend, also the name of its module and distribution."""
    oom_lines: re.Pattern[str] = exhaustion.OOM_LINES
    """Matches a log line that reports a failed allocation which was not recovered; the group `report` is quoted."""
    shortage_lines: re.Pattern[str] = exhaustion.SHORTAGE_LINES
    """Matches a log line that reports too little device memory, recovered or not; the group `report` is quoted."""
    fallback_lines: re.Pattern[str] = exhaustion.FALLBACK_LINES
    """Matches a log line that reports a slower algorithm, chosen because memory is short just below the limit."""
    suspects: re.Pattern[str] = exhaustion.SUSPECTS
    """Matches an error that has several causes, one of them too little device memory; `shortage_lines` decides."""
    outside_pool: re.Pattern[str] = exhaustion.OUTSIDE_POOL
    """Matches an error of a library that found no memory outside the pool, and a log line about a pool smaller than its
    limit. A smaller limit helps in both cases."""
    switches: frozenset[str] = frozenset()
    """The environment variables that affect a step's speed or memory; `KERAS_BACKEND` is always one."""
    switch_prefixes: tuple[str, ...] = ()
    """Prefixes of such variables."""
    limits_cpu = False
    """Whether the memory of steps on a CPU is counted and can be limited; otherwise it is host memory like any other."""
    steps_are_async = True
    """Whether `fit` dispatches steps asynchronously when no batch callback is set."""
    steps_ahead = 0
    """On a CPU, the number of steps that may be dispatched beyond the running one, each with its batch."""
    uses_tfdata = False
    """Whether Keras turns every input into a `tf.data.Dataset`."""
    distribution = ""
    """The class that trains one model on several devices of a host, a share of each batch on each; empty if none does."""
    needs_even_batches = False
    """Whether training fails on a batch that cannot be divided evenly among the devices."""

    def environment(self, placement: Placement, cache: Path) -> dict[str, str]:
        """Return the variables to set before the backend is imported, so that it uses these devices.

        GPUs are selected by UUID, which does not depend on CUDA's order. All logging is on, since logs report OOMs. The
        processes of a tune keep what they compile in the folder `cache`.
        """
        return {
            "KERAS_BACKEND": self.name,
            "CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in placement.gpus) or "-1",
            "TF_CPP_MIN_LOG_LEVEL": "0",
            **exhaustion.logged_collectives(placement, os.environ),
        }

    def preload(self) -> None:
        """Import Keras and the backend without running an operation.

        Raises:
            UsageError: Keras is configured for another backend.
        """
        import keras  # heavy: must stay out of the parent

        if keras.backend.backend() != self.name:
            raise UsageError(f"Keras is configured for {keras.backend.backend()}; set KERAS_BACKEND={self.name}")

    @abstractmethod
    def set_limit(self, placement: Placement, limit_bytes: int | None) -> None:
        """Enforce the limit on each device; called in a trial's process before its first operation.

        Raises:
            UsageError: the backend does not see the devices.
        """

    def distributing(self, placement: Placement) -> AbstractContextManager[Any]:
        """Return the context in which to build a model that trains on all of these devices, by `distribution`."""
        raise NotImplementedError(f"{self.name} has no distribution")

    def problems(self, device: Device | None, limit_bytes: int | None) -> tuple[str, ...]:
        """Return sentences about settings that falsify trials on this device under this limit."""
        return ()

    def pool_bytes(self, device: Device | None) -> int | None:
        """Return how much of the free device memory a program without a limit takes; None if unknown."""
        return None

    @abstractmethod
    def has_started(self) -> bool:
        """Return whether an operation has run; before that, reading memory would prevent the user from configuring it."""

    def start(self) -> None:  # noqa: B027  # nothing to start by default
        """Run an operation, so that a process has the threads that it has while training."""

    @abstractmethod
    def peak_bytes(self, placement: Placement) -> int | None:
        """Return the peak of device memory since the start or `reset_peak`, bytes; None if the backend does not count.

        Of several GPUs, the highest peak.
        """

    def reset_peak(self, placement: Placement) -> None:  # noqa: B027  # a backend may be unable to
        """Reset the peak to the memory in use, if the backend can; called only if `peak_bytes` is not None."""

    def retries(self, placement: Placement) -> int:
        """Return how often the allocator released its cache to find room, which makes steps near the limit slow."""
        return 0

    def end_of(self, logs: Any) -> Callable[[], None] | None:
        """Return a function that waits for the step that returned these logs; None if the step has ended."""
        return None

    def takes_turns(self, device: Device | None) -> bool:
        """Return whether a batch is made only while no step runs, for data without a queue."""
        return False

    def process_problem(self, device: Device | None) -> str | None:
        """Return a sentence on why Keras's worker processes must not be tried; None if they may."""
        return None

    @abstractmethod
    def estimator(self, step: TrainStep) -> StepEstimator:
        """Return an estimator of a train step's memory; building it makes all variables that the step uses.

        Raises:
            Exception: the model's code fails for such a batch.
        """

    @abstractmethod
    def exhausted(self, error: BaseException) -> FailureKind | None:
        """Return the memory that an exception reports as exhausted, DEVICE_OOM or HOST_OOM; None if it reports none.

        Errors of the user's own types are never one of them.
        """

    def distributions(self) -> tuple[str, ...]:
        """Return the installed distributions whose versions affect a step's speed and memory."""
        return (self.name, "keras", "numpy")

    def settings(self) -> dict[str, str]:
        """Return the versions and switches that affect a step's speed and memory, without loading the backend."""
        return {
            **{name: version(name) for name in self.distributions()},
            **self.switches_in(os.environ),
            "KERAS_BACKEND": self.name,
            "python": f"{sys.version_info.major}.{sys.version_info.minor}",
            "keras.json": json.dumps(keras_settings(os.environ), sort_keys=True),
        }

    def switches_in(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of an environment that affect a step's speed and memory."""
        return {
            name: value
            for name, value in environment.items()
            if name in self.switches or (self.switch_prefixes and name.startswith(self.switch_prefixes))
        }

    def versions(self) -> dict[str, str]:
        """Return the versions that affect a step's speed and memory, as the loaded modules report them."""
        return {name: str(import_module(name).__version__) for name in (self.name, "keras", "numpy")}


def unseen_gpus(backend: str, placement: Placement, extra: str) -> UsageError:
    """Return the error for a backend that does not see the GPUs; `extra` installs it with its CUDA libraries."""
    which = "the GPU" if placement.count == 1 else f"all {placement.count} GPUs"
    return UsageError(
        f"{backend} does not see {which} that the driver reports ({placement.name}): install it with its CUDA libraries "
        f"({install_command(extra)}), or set device: cpu"
    )
