"""The interface between a trial's process and a Keras backend, what its estimates share, and
Keras's configuration file.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from autofit.backends import exhaustion
from autofit.errors import UsageError
from autofit.records import DEFAULT_BACKEND, install_command, version_of
from autofit.records.description import Footprint
from autofit.records.machine import Device, Placement
from autofit.records.states import FailureKind
from autofit.records.units import format_bytes

# waits for the end of a step; None if it has ended
WaitForEnd = Callable[[], None] | None

# beginnings of the names of environment variables that affect a step's speed or memory on any
# backend
_SWITCHES = (
    "CUDA_LAUNCH_",
    "CUDA_MODULE_",
    "KERAS_BACKEND",
    "KERAS_MAX_",
    "MKL_NUM_",
    "NVIDIA_TF32_",
    "OMP_NUM_",
)

# the defaults that Keras writes to its file when it is first imported
_DEFAULTS = {
    "floatx": "float32",
    "epsilon": 1e-07,
    "backend": DEFAULT_BACKEND,
    "image_data_format": "channels_last",
}


@dataclass(frozen=True)
class TrainStep:
    """A train step whose memory is to be estimated."""

    # compiled; the estimator may train it, because it is discarded afterwards
    model: Any
    batch: Any  # arrays in the structure that Keras passes to `train_step`
    device: Device | None  # the accelerator, None for the CPU
    # of which batch sizes are multiples; None allows only the batch's own size
    multiple_of: int | None = 1
    # bytes of the data's tensors that the device holds in addition to the step's memory
    data_tensors: Sequence[int] = ()

    @property
    def own_size(self) -> int:
        """The number of samples in the batch; 1 if its arrays have no axis."""
        import keras  # heavy: must stay out of the parent

        arrays = [leaf for leaf in keras.tree.flatten(self.batch) if np.ndim(leaf)]
        return max((int(array.shape[0]) for array in arrays), default=1)


class ProgramSetting(NamedTuple):
    """What a program may have set that decides speed and memory, as expressions of Python."""

    # they may use `keras`, the name by which programs import the backend, `sys` and `psutil`
    value: str
    default: str
    line: str  # makes the setting; its value stands for `{!r}`


class StepEstimator(Protocol):
    """Estimates the device memory of a train step."""

    # of the variables that the step uses in addition to the model's own
    optimizer_bytes: int
    # whether the step uses the optimizer that was passed to `compile`
    uses_model_optimizer: bool

    def estimates(
        self, batch_sizes: Sequence[int], *, compile_all: bool
    ) -> Iterator[Footprint]:
        """Yield an estimate of the step's device memory for each batch size as soon as it is known,
        quick ones first.

        A method that compiles the step covers only the first one or two sizes, or all of them if
        `compile_all` is true. Any exception means that the memory of this model cannot be
        estimated.
        """

    def on_gpu(self, gpu: Device, batch_size: int) -> Footprint:
        """Estimate the step's memory on a GPU that need not be there. Any exception means that this
        is not possible.
        """


class Backend(ABC):
    """A Keras backend, as a trial's process uses it. Importing the module of a subclass must not
    load the backend.
    """

    name: ClassVar[str]  # in Keras; also that of its module and of its distribution
    title: ClassVar[str]  # as its users write it
    # the extra of autofit that installs it with CUDA's libraries
    gpu_extra: ClassVar[str]
    import_line: ClassVar[str]  # the usual one in programs
    # what a program may have set in it that decides speed and memory
    program_settings: tuple[ProgramSetting, ...] = ()
    # log lines about a failed allocation that ends the training; messages quote the group `report`
    oom_lines = exhaustion.OOM_LINES
    # log lines about too little device memory, even if training goes on; messages quote the group
    # `report`
    shortage_lines = exhaustion.SHORTAGE_LINES
    # errors that may be due to too little device memory; they are if a log line matches
    # `shortage_lines`
    suspects = exhaustion.SUSPECTS
    # the error of a library that found no memory outside the pool, and the log line about a pool
    # that could not grow to its limit: a lower limit helps in both cases
    outside_pool = exhaustion.OUTSIDE_POOL
    # beginnings of the names of further variables that affect speed or memory, and exceptions
    switch_prefixes: tuple[str, ...] = ()
    no_switches: frozenset[str] = frozenset()
    # whether it counts and limits the memory of steps on a CPU; if not, only host memory is limited
    limits_cpu = False
    # whether `fit` dispatches steps asynchronously when no batch callback is set
    steps_are_async = True
    # whether a step takes the state of the model as an argument, and returns it
    is_stateless = False
    # whether the first step creates the variables of optimizer and metrics, for which it is traced
    # twice; if not, `fit` creates them before
    creates_variables_in_step = False
    has_steps_per_execution = True  # whether Keras can run several steps in a call
    steps_ahead = 0  # that may wait behind the running one on a CPU, each of which holds its batch
    # whether steps and batches alternate on a CPU when the input has no queue
    alternates_on_cpu = False
    # why trials on a GPU must not use Keras's worker processes, as a sentence; empty if they may
    fork_problem_on_gpu = ""
    uses_tfdata = False  # whether Keras turns every input into a `tf.data.Dataset`
    # variables of the environment, each with a pattern of the values for which a GPU's limit is not
    # enforced
    unlimited: tuple[tuple[str, str], ...] = ()
    # what to do about a GPU for which the backend was not built
    no_code_remedy = "install a newer version of it, or set backend to another one"
    limit_code = ""  # sets a limit of device memory in a user's program
    compiler = "XLA"  # of the train step, if `jit_compile` is set
    # whether the compiler decides before a step where all of its tensors lie, so that its peaks
    # follow a line closely
    plans_memory = True
    # by how much longer a trial may take if the step is compiled
    compile_seconds = 0.0
    # whether one program is compiled for all steps of a call, even if it does not stack the batches
    compiles_whole_calls = True
    # whether a compiler can tell the memory of a step for a GPU that is not there; if not, tensors
    # are counted
    compiles_for_absent_gpus = True
    # of a trial on a GPU until it is out of memory; None if an allocator that repeats what fails
    # makes it longer than other trials
    seconds_to_oom: float | None = None
    # the class that trains one model on several devices by splitting each batch; empty if there is
    # none
    distribution = ""
    distribution_import = ""  # what a program needs for it

    @classmethod
    @abstractmethod
    def holds_gpu_memory(cls) -> bool:
        """Return whether this process holds memory of a GPU by the backend, which is not loaded.

        Any exception means that this version of the backend does not tell.
        """

    @property
    def _library(self) -> Any:  # heavy: must not be loaded in the parent process
        return import_module(self.name)

    def environment(self, placement: Placement, cache: Path) -> dict[str, str]:
        """Return the environment variables that make the backend use these devices, and share
        compiled code in `cache`.
        """
        variables = {
            "KERAS_BACKEND": self.name,
            # by UUID, which does not depend on CUDA's order
            "CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in placement.gpus)
            or "-1",
            "TF_CPP_MIN_LOG_LEVEL": "0",  # logs report OOMs
        }
        if len(placement.gpus) > 1:
            # NCCL then logs its failures
            variables["NCCL_DEBUG"] = os.environ.get("NCCL_DEBUG", "WARN")
        return variables

    def preload(self) -> None:
        """Import Keras and the backend without running an operation."""
        import keras  # noqa: F401  # heavy: must stay out of the parent

    def prepare_estimates(self) -> None:  # noqa: B027  # most estimates need nothing
        """Set what estimates need before a process's first operation.

        XLA reads its flags when a device is made.
        """

    @abstractmethod
    def set_limit(self, placement: Placement, limit_bytes: int | None) -> None:
        """Enforce the limit on each device before a process's first operation; raise UsageError if
        a device is missing.
        """

    def _unseen_gpus(self, placement: Placement) -> UsageError:
        return UsageError(
            f"{self.title} does not see what the driver reports ({placement.name}); install it "
            f"with its CUDA libraries ({install_command(self.gpu_extra)}), update the NVIDIA "
            "driver if that does not help, or set device: cpu"
        )

    def keep_to_one_host(self) -> None:  # noqa: B027  # only some backends wait for other hosts
        """Make the user's code, loaded later, raise UsageError where it would wait for other
        hosts.
        """

    def distributing(self, placement: Placement) -> AbstractContextManager[Any]:
        """Return a context manager: models built in it train on all of these devices, by the class
        `distribution`.
        """
        raise NotImplementedError

    def distributed_lines(self, assignment: str) -> list[str]:
        """Return lines of a program in which an assignment builds a model for several devices."""
        raise NotImplementedError

    def distribution_of(self, model: Any) -> tuple[str, int] | None:
        """Return the name of the class that distributes a model, and the number of devices.

        None is returned for a model that is not distributed.
        """
        import keras  # heavy: must stay out of the parent

        layout = keras.distribution.distribution()
        if layout is None:
            return None
        return type(layout).__name__, int(layout.device_mesh.devices.size)

    def problems(
        self, gpu: Device, limit_bytes: int | None, array_bytes: int = 0
    ) -> Iterator[str]:
        """Yield messages about what makes trials on this GPU unreliable; `array_bytes` is the size
        of the data's arrays.
        """
        for variable, pattern in self.unlimited:
            if found := re.search(pattern, os.environ.get(variable, ""), re.IGNORECASE):
                yield (
                    f"{variable}={found[0]} is set: the limit of device memory is not enforced. "
                    "Unset this variable"
                )
        pool_bytes = self.pool_bytes(gpu)
        if (
            limit_bytes is not None
            and pool_bytes is not None
            and limit_bytes > pool_bytes
        ):
            code = self.limit_code.format(
                mib=limit_bytes // 2**20, share=limit_bytes / gpu.total_bytes
            )
            yield (
                f"the limit of {format_bytes(limit_bytes)} is more than {self.name} takes of "
                f"{gpu.name} by default (about "
                f"{format_bytes(pool_bytes)}): a config that fits in a trial may run out of memory "
                "in your run. Set the "
                f"same limit in your program: {code}"
            )

    def pool_bytes(self, device: Device | None) -> int | None:
        """Return the free device memory that a program without a limit takes, in bytes; None if
        unknown.
        """
        return None

    def start(self) -> None:  # noqa: B027  # nothing to start by default
        """Run an operation, so that the process starts the threads that training uses."""

    def compile_clock(self) -> Callable[[], float]:
        """Return a function of the seconds that this process has compiled from now on; 0 if that is
        unknown.
        """
        return float

    @abstractmethod
    def peak_bytes(self, placement: Placement) -> int | None:
        """Return the highest peak of any device since the start or `reset_peak`, in bytes; None if
        it is not counted.
        """
        # does not start the backend, which user code may configure until the first operation

    def reset_peak(  # noqa: B027  # not every backend can
        self, placement: Placement, *, release: bool
    ) -> None:
        """Reset the peak to the memory in use; called only if `peak_bytes` is not None.

        If `release`, memory that the backend only keeps for later steps is given back before.
        """

    def allocator_notice(self, peak_bytes: int, limit_bytes: int) -> str:
        """Return what the allocator had to do for steps with this peak, or ""."""
        return ""

    def stacks_steps(self) -> bool:
        """Return whether Keras stacks the batches of a call of several steps."""
        return False

    def end_of(self, outputs: Any) -> WaitForEnd:
        """Return a function that waits for the end of the step that returned these outputs; None if
        it has ended.
        """
        return None

    def on_device(self, batch: Any) -> Any:
        """Return a batch whose arrays lie on the device, if the backend copies batches within its
        step; None stays None.
        """
        return batch

    # most backends copy a batch before they pass it on
    def wait_for_copies(self, batch: Any) -> None:  # noqa: B027
        """Wait until a batch that a step was given lies on the device."""

    def decide_as_on_gpu(self) -> None:  # noqa: B027  # nothing to change by default
        """Let Keras build models on this CPU as it builds them on a GPU, for estimates of GPUs that
        are not there.
        """

    def estimator(self, step: TrainStep) -> StepEstimator:
        """Return an estimator, which creates all variables that the step uses; raise if the model
        fails for the batch.
        """
        # loads Keras and the backend
        module = import_module(f"autofit.backends.{self.name}.step_footprint")
        estimator: StepEstimator = module.StepFootprint(step)
        return estimator

    def exhausted(self, error: BaseException) -> FailureKind | None:
        """Return the memory that an exception or one of its causes reports as exhausted, or
        None.
        """
        return next(filter(None, map(self._exhausted, exhaustion.chain(error))), None)

    @abstractmethod
    def _exhausted(self, error: BaseException) -> FailureKind | None:
        """Return the memory that an exception itself reports as exhausted; a type that the user
        defines never counts.
        """

    def settings(self) -> dict[str, str]:
        """Return the versions and switches that affect a step's speed and memory, without loading
        the backend.
        """
        return {
            **{name: version(name) for name in (self.name, "keras", "numpy")},
            **self.switched(),
            "KERAS_BACKEND": self.name,
            "python": f"{sys.version_info.major}.{sys.version_info.minor}",
            "keras.json": json.dumps(keras_settings(), sort_keys=True),
        }

    def switched(self) -> dict[str, str]:
        """Return the environment variables that are set now and affect a step's speed and
        memory.
        """
        prefixes = (*_SWITCHES, *self.switch_prefixes)
        return {
            k: v
            for k, v in os.environ.items()
            if k.startswith(prefixes) and k not in self.no_switches
        }

    # A trial's process has loaded Keras before it imports the user's modules. What they set in the
    # environment for Keras, XLA or an allocator comes too late then, while the user's own run obeys
    # it: the trial would measure another program.
    @contextlib.contextmanager
    def refusing_late_switches(self) -> Iterator[None]:
        """Raise UsageError if modules that are imported in this context set a switch; it replaces
        an error of theirs.
        """
        before = self.switched()
        try:
            yield
        finally:
            for name, value in self.switched().items() - before.items():
                remedy = f"set it before autofit starts: export {name}={value}"
                if name == "KERAS_BACKEND":
                    remedy = f"set backend to {value}"
                raise UsageError(
                    f"your module sets {name}={value} when it is imported, and Keras is loaded "
                    f"before it; {remedy}"
                ) from None

    def versions(self) -> dict[str, str]:
        """Return the versions that affect a step's speed and memory, as the loaded modules report
        them.
        """
        return {
            name: str(import_module(name).__version__)
            for name in (self.name, "keras", "numpy")
        }


def optimizers_of(model: Any) -> list[Any]:
    """Return the optimizer passed to `compile` and those that are attributes of the model, each
    once.
    """
    listed = [getattr(model, "optimizer", None), *vars(model).values()]
    found = {id(value): value for value in listed if hasattr(value, "apply_gradients")}
    return [*found.values()]


def bytes_of_variables(variables: Iterable[Any]) -> int:
    """Return the total size of Keras variables, in bytes."""
    import keras  # heavy: must stay out of the parent; it registers bfloat16 with NumPy

    total = 0
    for variable in variables:
        name = keras.backend.standardize_dtype(variable.dtype)
        total += math.prod(variable.shape) * np.dtype(name).itemsize
    return total


def bytes_of_optimizers(model: Any) -> int:
    """Return the total size of the variables of a model's optimizers, in bytes."""
    return bytes_of_variables(
        variable
        for optimizer in optimizers_of(model)
        for variable in optimizer.variables
    )


def version(name: str) -> str:
    """Return the version of a package, or of its nightly build; empty if neither is installed."""
    return version_of(name) or version_of(f"{name}-nightly") or ""


def require_code(backend: Backend, gpu: Device, *texts: str) -> None:
    """Raise UsageError if a failed run's texts say that the backend was not built for the GPU."""
    if any(map(exhaustion.NO_CODE.search, texts)):
        capability = ".".join(map(str, gpu.compute_capability or ("unknown",)))
        raise UsageError(
            f"{backend.name} {version(backend.name)} was not built for {gpu.name} "
            f"(compute capability {capability}): {backend.no_code_remedy}",
            key="device",
        )


def keras_settings() -> dict[str, Any]:
    """Return Keras's settings: the defaults, overridden by those in its file if that can be read
    and is valid.
    """
    # the same choice as Keras's
    home = Path.home() if os.access(Path.home(), os.W_OK) else Path("/tmp")
    file = (
        Path(os.environ.get("KERAS_HOME", home / ".keras")).expanduser() / "keras.json"
    )
    with contextlib.suppress(OSError, ValueError, TypeError):
        return {**_DEFAULTS, **json.loads(file.read_text())}
    return {**_DEFAULTS}
