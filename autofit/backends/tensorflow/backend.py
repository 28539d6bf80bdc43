"""The TensorFlow backend: device limits, memory peaks, signs of OOM, and memory estimates."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from autofit.backends import exhaustion, keras_config
from autofit.backends.protocol import StepEstimator
from autofit.backends.tensorflow import compile_cache, gpu_limit
from autofit.backends.tensorflow.exhaustion import exhausted
from autofit.backends.tensorflow.memory.allocator import ONEDNN_LEAST_BYTES
from autofit.errors import UsageError
from autofit.records.distribution import install_command
from autofit.records.machine import Device, Placement
from autofit.records.states import FailureKind

_MIB = 2**20
_BFC_SWITCH = "TF_CPU_ALLOCATOR_USE_BFC"
_SWITCHES = (
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "KERAS_BACKEND",
    "KERAS_MAX_STEPS_PER_EPOCH",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "TF_CUDA_PLATFORM_GPU_DEVICE_SCHEDULE",
    "TF_CUDNN_DETERMINISTIC",
    "TF_CUDNN_USE_AUTOTUNE",
    "TF_CUDNN_WORKSPACE_LIMIT_IN_MB",
    "TF_DETERMINISTIC_OPS",
    "TF_DEVICE_MIN_SYS_MEMORY_IN_MB",
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "TF_GPU_ALLOCATOR",
    "TF_GPU_HOST_MEM_LIMIT_IN_MB",
    "TF_GPU_THREAD_COUNT",
    "TF_GPU_THREAD_MODE",
    "TF_NUM_INTEROP_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_USE_LEGACY_KERAS",
    "TF_XLA_FLAGS",
    "XLA_FLAGS",
)


class TensorFlow:
    """The TensorFlow backend of Keras; TensorFlow is imported by the methods that need it, in a trial's process only."""

    name = keras_config.TENSORFLOW
    oom_lines = exhaustion.OOM_LINES
    shortage_lines = exhaustion.SHORTAGE_LINES
    fallback_lines = exhaustion.FALLBACK_LINES
    suspects = exhaustion.SUSPECTS
    outside_pool = exhaustion.OUTSIDE_POOL
    limits_cpu = True
    steps_are_async = False
    steps_ahead = 0
    uses_tfdata = True
    distribution = "MirroredStrategy"
    needs_even_batches = False

    def environment(self, placement: Placement, cache: Path) -> dict[str, str]:
        """Select GPUs by UUID, which does not depend on CUDA's order, and turn on all logging, which reports OOMs."""
        variables = {
            "KERAS_BACKEND": self.name,
            "CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in placement.gpus) or "-1",
            "TF_CPP_MIN_LOG_LEVEL": "0",
            **exhaustion.logged_collectives(placement, os.environ),
        }
        if not placement.gpus:
            return {**variables, "HIP_VISIBLE_DEVICES": "-1"}  # of a build for AMD's GPUs
        return {**variables, **compile_cache.environment(os.environ, cache, importlib.metadata.version("tensorflow"))}

    def preload(self) -> None:
        """Import TensorFlow and Keras.

        Raises:
            UsageError: Keras is configured for another backend.
        """
        import tensorflow  # noqa: F401  # heavy: must stay out of the parent

        keras_config.import_keras(self.name)

    def set_limit(self, placement: Placement, limit_bytes: int | None) -> None:
        """Configure a logical device of that size on each GPU, on a CPU a capped allocator, which its devices share.

        On a CPU a limit selects the BFC allocator, which counts and can be capped with and without oneDNN (measured: see
        tests/trial/test_keras_facts.py). Without a limit the allocator stays the default one, whose speed differs a little.
        Builds for other GPUs than NVIDIA's, which no variable hides, are kept from using them.
        """
        tf = _tensorflow()
        if not placement.gpus:
            if not tf.sysconfig.get_build_info().get("is_cuda_build"):
                tf.config.set_visible_devices([], "GPU")
            if placement.count > 1:
                logical = [tf.config.LogicalDeviceConfiguration()] * placement.count
                tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], logical)
            if limit_bytes is not None:
                os.environ[_BFC_SWITCH] = "1"
                os.environ["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(max(1, limit_bytes // _MIB))
                os.environ["TF_MKL_ALLOC_MAX_BYTES"] = str(limit_bytes)
            return
        if limit_bytes is None:
            return
        seen = tf.config.list_physical_devices("GPU")
        if len(seen) < placement.count:
            which = "the GPU" if placement.count == 1 else f"all {placement.count} GPUs"
            raise UsageError(
                f"TensorFlow does not see {which} that the driver reports ({placement.name}): "
                f"install it with its CUDA libraries ({install_command('gpu')}), or set device: cpu"
            )
        for gpu in seen[: placement.count]:
            gpu_limit.hold(_context().context(), gpu, limit_bytes)

    def distributing(self, placement: Placement) -> AbstractContextManager[Any]:
        """See `Backend.distributing`: the strategy takes all GPUs that are visible, or else all parts of the CPU."""
        strategy = _tensorflow().distribute.MirroredStrategy()
        scope: AbstractContextManager[Any] = strategy.scope()
        return scope

    def problems(self, device: Device | None, limit_bytes: int | None) -> tuple[str, ...]:
        """See `Backend.problems`."""
        if device is None:
            return ()
        problems = gpu_limit.allocator_problem(os.environ), gpu_limit.pool_problem(device, limit_bytes)
        return tuple(problem for problem in problems if problem is not None)

    def pool_bytes(self, device: Device | None) -> int | None:
        """See `Backend.pool_bytes`."""
        return None if device is None else gpu_limit.default_pool_bytes(device)

    def has_started(self) -> bool:
        """Return whether TensorFlow has its context, which the first operation makes; False where that cannot be read."""
        return getattr(_context().context_safe(), "_context_handle", None) is not None

    def start(self) -> None:
        """See `Backend.start`: none, since forks are tried before the first operation."""

    def peak_bytes(self, placement: Placement) -> int | None:
        """Return the allocator's own peak; None for the CPU's default allocator, which keeps no count."""
        read = _tensorflow().config.experimental.get_memory_info
        try:
            return max(int(read(name)["peak"]) for name in _with_allocators(placement))
        except ValueError:
            return None

    def reset_peak(self, placement: Placement) -> None:
        """Reset the allocators' peaks to what is in use."""
        for name in _with_allocators(placement):
            _tensorflow().config.experimental.reset_memory_stats(name)

    def retries(self, placement: Placement) -> int:
        """See `Backend.retries`: TensorFlow reports none but in its log."""
        return 0

    def end_of(self, logs: Any) -> Callable[[], None] | None:
        """See `Backend.end_of`: Keras waits for each step itself."""
        return None

    def takes_turns(self, device: Device | None) -> bool:
        """See `Backend.takes_turns`: tf.data has the next batch ready."""
        return False

    def process_problem(self, device: Device | None) -> str | None:
        """See `Backend.process_problem`."""
        return None

    def estimator(
        self,
        model: Any,
        batch: Any,
        device: Device | None,
        limit_bytes: int | None,
        multiple_of: int | None = 1,
        data_tensors: Sequence[int] = (),
    ) -> StepEstimator:
        """See `Backend.estimator`: by XLA's buffer assignment where XLA compiles the step, else by a liveness walk."""
        from autofit.backends.tensorflow.memory.step_footprint import (
            StepFootprint,  # loads Keras and TensorFlow: must stay out of the parent
        )

        onednn = uses_onednn()
        if device is None and onednn is None:
            raise RuntimeError("this TensorFlow does not report whether it uses oneDNN's kernels")
        workers = _tensorflow().config.threading.get_inter_op_parallelism_threads() or os.cpu_count() or 1
        return StepFootprint(
            model,
            batch,
            on_cpu=device is None,
            onednn=bool(onednn),
            workers=workers,
            limit_bytes=limit_bytes,
            multiple_of=multiple_of,
            data_tensors=data_tensors,
            least_bytes=ONEDNN_LEAST_BYTES if device is None and onednn and not _uses_bfc(os.environ) else 1,
        )

    def exhausted(self, error: BaseException) -> FailureKind | None:
        """See `Backend.exhausted`."""
        return exhausted(error, _tensorflow().errors)

    def settings(self) -> dict[str, str]:
        """See `Backend.settings`."""
        distributions = ("tensorflow", "keras", "numpy", *(["tf_keras"] if _legacy() else []))
        switches = {name: os.environ[name] for name in _SWITCHES if name in os.environ}
        return keras_config.settings_in_force(distributions, switches, os.environ)

    def versions(self) -> dict[str, str]:
        """Return the versions of TensorFlow, Keras and NumPy, and whether TensorFlow uses oneDNN."""
        import keras  # heavy: must stay out of the parent
        import numpy as np  # only for its version

        return {
            "tensorflow": str(_tensorflow().__version__),
            "keras": str(keras.__version__),
            "numpy": np.__version__,
            "oneDNN": {True: "on", False: "off", None: "unknown"}[uses_onednn()],
        }


def _uses_bfc(environment: Mapping[str, str]) -> bool:
    """Return whether the CPU's memory comes from the BFC allocator alone; oneDNN's own uses it for large buffers."""
    return environment.get(_BFC_SWITCH, "").lower() in ("1", "true")


def uses_onednn() -> bool | None:
    """Return whether TensorFlow uses oneDNN's kernels on the CPU; None where this TensorFlow does not report it.

    By default it does on processors with AVX-512 VNNI or newer extensions; `TF_ENABLE_ONEDNN_OPTS` overrides that on x86.
    TensorFlow has no public function for it.
    """
    try:
        from tensorflow.python.util import _pywrap_util_port  # heavy: must stay out of the parent

        return bool(_pywrap_util_port.IsMklEnabled())
    except (ImportError, AttributeError):
        return None


def _legacy() -> bool:
    return os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")


def _with_allocators(placement: Placement) -> list[str]:
    """TensorFlow's names of the devices with an allocator of their own: the logical ones of a CPU share one."""
    return [f"GPU:{index}" for index in range(len(placement.gpus))] or ["CPU:0"]


def _context() -> Any:
    """The module of TensorFlow's context, which has no public name."""
    from tensorflow.python.eager import context  # heavy: must stay out of the parent

    return context


def _tensorflow() -> Any:
    import tensorflow as tf  # heavy: must stay out of the parent

    return tf
