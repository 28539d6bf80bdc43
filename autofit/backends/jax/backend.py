"""The JAX backend: device limits, memory peaks, signs of OOM, and memory estimates."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from autofit.backends import exhaustion, keras_config
from autofit.backends.jax import host_devices
from autofit.backends.protocol import StepEstimator
from autofit.errors import UsageError
from autofit.records.distribution import install_command
from autofit.records.machine import Device, Placement
from autofit.records.states import FailureKind
from autofit.records.units import format_bytes

_FRACTION, _OLD_FRACTION = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"  # both set is an error of JAX
_DEFAULT_FRACTION = 0.75  # of a GPU's memory, which JAX takes without being asked
_CACHE = "JAX_COMPILATION_CACHE_DIR"
_CACHE_ALL = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
_HOST = re.compile(r"(?<!OutOf)MemoryError\b|pinned host memory|std::bad_alloc")
_SWITCHES = ("KERAS_BACKEND", "KERAS_MAX_STEPS_PER_EPOCH", "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS", "XLA_FLAGS")
_SWITCH_PREFIXES = ("JAX_", "XLA_CLIENT_", "XLA_PYTHON_CLIENT_")
_OF_THE_CACHE = (_CACHE, *_CACHE_ALL)


class Jax:
    """The JAX backend of Keras; JAX is imported by the methods that need it, in a trial's process only."""

    name = "jax"
    oom_lines = exhaustion.OOM_LINES
    shortage_lines = exhaustion.SHORTAGE_LINES
    fallback_lines = exhaustion.FALLBACK_LINES
    suspects = exhaustion.SUSPECTS
    outside_pool = exhaustion.OUTSIDE_POOL
    limits_cpu = False
    steps_are_async = True
    steps_ahead = host_devices.STEPS_AHEAD
    uses_tfdata = False
    distribution = "DataParallel"
    needs_even_batches = True

    def environment(self, placement: Placement, cache: Path) -> dict[str, str]:
        """Select GPUs by UUID, and let the processes share what they compile."""
        variables = {
            "KERAS_BACKEND": self.name,
            "CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in placement.gpus) or "-1",
            "TF_CPP_MIN_LOG_LEVEL": "0",
            **exhaustion.logged_collectives(placement, os.environ),
        }
        if not placement.gpus:
            variables["JAX_PLATFORMS"] = "cpu"
            if placement.count > 1:
                variables |= host_devices.variables(placement.count)
        return variables if _CACHE in os.environ else {**variables, _CACHE: str(cache), **_CACHE_ALL}

    def preload(self) -> None:
        """Import Keras and JAX; TensorFlow, too, where it could take the GPU for itself once a dataset of it is made.

        Raises:
            UsageError: Keras is configured for another backend.
        """
        keras_config.import_keras(self.name)
        if os.environ.get("CUDA_VISIBLE_DEVICES") != "-1" and importlib.util.find_spec("tensorflow") is not None:
            import tensorflow  # noqa: F401  # heavy: must stay out of the parent

    def set_limit(self, placement: Placement, limit_bytes: int | None) -> None:
        """Set the share of each GPU that JAX's allocator may take, which it reads at the first operation.

        Raises:
            UsageError: JAX does not see the GPUs.
        """
        if not placement.gpus:
            return
        tensorflow = sys.modules.get("tensorflow")
        if tensorflow is not None:
            tensorflow.config.set_visible_devices([], "GPU")
        if limit_bytes is not None:
            os.environ.pop(_OLD_FRACTION, None)
            os.environ[_FRACTION] = f"{limit_bytes / max(gpu.total_bytes for gpu in placement.gpus):.6f}"
        if _jax().default_backend() == "cpu" or _jax().local_device_count() < placement.count:
            which = "the GPU" if placement.count == 1 else f"all {placement.count} GPUs"
            raise UsageError(
                f"JAX does not see {which} that the driver reports ({placement.name}): install it with its CUDA libraries "
                f"({install_command('jax-gpu')}), or set device: cpu"
            )

    def distributing(self, placement: Placement) -> AbstractContextManager[Any]:
        """See `Backend.distributing`: the distribution is Keras's global one from now on."""
        import keras  # heavy: must stay out of the parent

        keras.distribution.set_distribution(keras.distribution.DataParallel())
        return contextlib.nullcontext()

    def problems(self, device: Device | None, limit_bytes: int | None) -> tuple[str, ...]:
        """See `Backend.problems`."""
        if device is None:
            return ()
        found = ["JAX cannot begin its count of device memory anew: a trial's peak includes that of its first step"]
        default = self.pool_bytes(device)
        if limit_bytes is not None and default is not None and limit_bytes > default:
            found.append(
                f"a limit of {format_bytes(limit_bytes)} is more than JAX takes of {device.name} by itself (about "
                f"{format_bytes(default)}): what fits a trial may run out of memory in your run, unless it sets "
                f"{_FRACTION}={limit_bytes / device.total_bytes:.2f}"
            )
        return tuple(found)

    def pool_bytes(self, device: Device | None) -> int | None:
        """See `Backend.pool_bytes`: the share of the whole memory that JAX takes by itself, or the user has set."""
        if device is None:
            return None
        written = os.environ.get(_FRACTION) or os.environ.get(_OLD_FRACTION)
        try:
            fraction = float(written) if written else _DEFAULT_FRACTION
        except ValueError:
            return None
        return min(device.free_bytes, round(fraction * device.total_bytes))

    def has_started(self) -> bool:
        """Return whether JAX has its clients, which the first operation makes; False where that cannot be read."""
        bridge = sys.modules.get("jax._src.xla_bridge")
        return bool(getattr(bridge, "_backends", None))

    def start(self) -> None:
        """See `Backend.start`."""
        jax = _jax()
        jax.block_until_ready(jax.jit(lambda x: x @ x)(jax.numpy.ones((64, 64))))

    def peak_bytes(self, placement: Placement) -> int | None:
        """Return the allocator's own peak since the start; None on a CPU, where JAX keeps no count."""
        if not placement.gpus:
            return None
        counts = [device.memory_stats() for device in _jax().local_devices()[: placement.count]]
        return None if None in counts else max(int(memory["peak_bytes_in_use"]) for memory in counts)

    def reset_peak(self, placement: Placement) -> None:
        """Leave the peak as it is: JAX cannot reset it."""

    def retries(self, placement: Placement) -> int:
        """See `Backend.retries`: JAX reports none but in its log."""
        return 0

    def end_of(self, logs: Any) -> Callable[[], None] | None:
        """See `Backend.end_of`."""
        return functools.partial(_jax().block_until_ready, logs)

    def takes_turns(self, device: Device | None) -> bool:
        """See `Backend.takes_turns`: steps run while the training thread makes the next batch."""
        return False

    def process_problem(self, device: Device | None) -> str | None:
        """See `Backend.process_problem`."""
        if device is None:
            return None
        return (
            "worker processes are not tried: Keras forks them out of a process in which JAX uses the GPU, where they hang "
            "(keras-team/keras issue 20619). Use threads"
        )

    def estimator(
        self,
        model: Any,
        batch: Any,
        device: Device | None,
        limit_bytes: int | None,
        multiple_of: int | None = 1,
        data_tensors: Sequence[int] = (),
    ) -> StepEstimator:
        """See `Backend.estimator`: by XLA's buffer assignment of the compiled step."""
        from autofit.backends.jax.step_footprint import StepFootprint  # loads Keras and JAX: must stay out of the parent

        return StepFootprint(model, batch, on_cpu=device is None, multiple_of=multiple_of)

    def exhausted(self, error: BaseException) -> FailureKind | None:
        """See `Backend.exhausted`. Errors of the user's own types stay his, whatever they say."""
        for link in exhaustion.chain(error):
            message = str(link)
            if isinstance(link, _jax().errors.JaxRuntimeError):
                if _HOST.search(message):
                    return FailureKind.HOST_OOM
                if "RESOURCE_EXHAUSTED" in message or exhaustion.FAILED_ALLOCATION.search(message):
                    return FailureKind.DEVICE_OOM
            elif exhaustion.is_of_tensorflow(link):  # of a `tf.data` pipeline, whose memory is the host's
                return FailureKind.HOST_OOM
        return None

    def settings(self) -> dict[str, str]:
        """See `Backend.settings`."""
        in_force = {**switches(os.environ), "KERAS_BACKEND": self.name}
        return keras_config.settings_in_force(("jax", "jaxlib", "keras", "numpy"), in_force, os.environ)

    def versions(self) -> dict[str, str]:
        """Return the versions of JAX, Keras and NumPy."""
        import keras  # heavy: must stay out of the parent
        import numpy as np  # only for its version

        return {"jax": str(_jax().__version__), "keras": str(keras.__version__), "numpy": np.__version__}


def switches(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that affect a step's speed and memory."""
    return {
        name: value
        for name, value in environment.items()
        if name in _SWITCHES or (name.startswith(_SWITCH_PREFIXES) and name not in _OF_THE_CACHE)
    }


def _jax() -> Any:
    import jax  # heavy: must stay out of the parent

    return jax
