"""The TensorFlow backend: device limits, memory peaks, OOM detection and memory estimates."""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Any

from autofit.backends import exhaustion
from autofit.backends.protocol import TENSORFLOW, Backend, StepEstimator, TrainStep, unseen_gpus
from autofit.backends.tensorflow import gpu
from autofit.records.machine import Device, Placement
from autofit.records.states import FailureKind

_MIB = 2**20
_ONEDNN_LEAST_BYTES = 256 * 2**10  # the smallest buffer that oneDNN's allocator requests from BFC (mkl_cpu_allocator.h)
_CONTEXT = "tensorflow.python.eager.context"  # private; it must stay out of the parent
_BFC_SWITCH, _THREADS = "TF_CPU_ALLOCATOR_USE_BFC", "TF_NUM_INTEROP_THREADS"
_NETWORK = re.compile(r"message larger than max|HTTP (?:request|response)|quota", re.IGNORECASE)  # not out of memory


class TensorFlow(Backend):
    """The TensorFlow backend of Keras. Its methods import TensorFlow when they need it, only in a trial's process."""

    name = TENSORFLOW
    switches = frozenset(
        """CUDA_LAUNCH_BLOCKING CUDA_MODULE_LOADING KERAS_MAX_STEPS_PER_EPOCH NVIDIA_TF32_OVERRIDE OMP_NUM_THREADS
        TF_CUDA_PLATFORM_GPU_DEVICE_SCHEDULE TF_CUDNN_DETERMINISTIC TF_CUDNN_USE_AUTOTUNE
        TF_CUDNN_WORKSPACE_LIMIT_IN_MB TF_DETERMINISTIC_OPS TF_DEVICE_MIN_SYS_MEMORY_IN_MB TF_ENABLE_ONEDNN_OPTS
        TF_FORCE_GPU_ALLOW_GROWTH TF_GPU_ALLOCATOR TF_GPU_HOST_MEM_LIMIT_IN_MB TF_GPU_THREAD_COUNT
        TF_GPU_THREAD_MODE TF_NUM_INTEROP_THREADS TF_NUM_INTRAOP_THREADS TF_XLA_FLAGS XLA_FLAGS""".split()  # noqa: SIM905  # a literal would take a line for each name
    )
    limits_cpu = True
    steps_are_async = False
    uses_tfdata = True
    distribution = "MirroredStrategy"

    def environment(self, placement: Placement, cache: Path) -> dict[str, str]:
        variables = super().environment(placement, cache)
        if not placement.gpus:
            return {**variables, "HIP_VISIBLE_DEVICES": "-1"}  # hides AMD GPUs
        return {**variables, **gpu.cache_variables(os.environ, cache, importlib.metadata.version("tensorflow"))}

    def end_of(self, outputs: Any) -> Callable[[], None] | None:
        """Return a function that fetches an output: unlike `fit`, `predict` does not wait for its steps on a GPU."""
        first = next((tensor for tensor in self._library.nest.flatten(outputs) if hasattr(tensor, "numpy")), None)
        return None if first is None else lambda: first[:1].numpy() if len(first.shape) else first.numpy()

    def set_limit(self, placement: Placement, limit_bytes: int | None) -> None:
        """Configure a logical device of `limit_bytes` on each GPU, or cap the allocator of all devices of the CPU."""
        tf = self._library
        if not placement.gpus:
            # one built for GPUs other than NVIDIA's may see its GPUs even if the environment variables hide them
            if not tf.sysconfig.get_build_info().get("is_cuda_build"):
                tf.config.set_visible_devices([], "GPU")
            if placement.count > 1:
                logical = [tf.config.LogicalDeviceConfiguration()] * placement.count
                tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], logical)
            # The BFC allocator counts memory and can be capped, with and without oneDNN (measured: see
            # tests/trial/test_keras_facts.py). Without a limit, TensorFlow keeps its default allocator, which is slightly
            # faster or slower.
            if limit_bytes is not None:
                os.environ[_BFC_SWITCH] = "1"
                os.environ["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(max(1, limit_bytes // _MIB))
                os.environ["TF_MKL_ALLOC_MAX_BYTES"] = str(limit_bytes)
            return
        if limit_bytes is None:
            return
        seen = tf.config.list_physical_devices("GPU")
        if len(seen) < placement.count:
            raise unseen_gpus("TensorFlow", placement, extra="gpu")
        for device in seen[: placement.count]:
            gpu.hold(import_module(_CONTEXT).context(), device, limit_bytes)

    def distributing(self, placement: Placement) -> AbstractContextManager[Any]:
        """Return the scope of a strategy that uses all visible GPUs or, without any, all logical devices of the CPU."""
        scope: AbstractContextManager[Any] = self._library.distribute.MirroredStrategy().scope()
        return scope

    def problems(self, device: Device | None, limit_bytes: int | None) -> tuple[str, ...]:
        if device is None:
            return ()
        return tuple(filter(None, (gpu.allocator_problem(os.environ), gpu.pool_problem(device, limit_bytes))))

    def pool_bytes(self, device: Device | None) -> int | None:
        return None if device is None else gpu.default_pool_bytes(device)

    def has_started(self) -> bool:
        """Return whether the first operation has created TensorFlow's context; False if that cannot be read."""
        return getattr(import_module(_CONTEXT).context_safe(), "_context_handle", None) is not None

    def peak_bytes(self, placement: Placement) -> int | None:
        """Return the allocator's peak in bytes; None for the CPU's default allocator without oneDNN: it does not count."""
        read = self._library.config.experimental.get_memory_info
        try:
            return max(int(read(name)["peak"]) for name in _with_allocators(placement))
        except ValueError:
            return None

    def reset_peak(self, placement: Placement) -> None:
        for name in _with_allocators(placement):
            self._library.config.experimental.reset_memory_stats(name)

    def decide_as_on_gpu(self) -> None:
        """Let `jit_compile="auto"` turn XLA on, as it does on a GPU if all layers allow it."""
        trainer = import_module("keras.src.trainers.trainer")
        trainer.Trainer._resolve_auto_jit_compile = trainer.model_supports_jit

    def estimator(self, step: TrainStep) -> StepEstimator:
        # loads Keras and TensorFlow: must stay out of the parent
        from autofit.backends.tensorflow.step_footprint import StepFootprint

        onednn, on_cpu = uses_onednn(), step.device is None
        # if BFC provides all CPU memory, it counts every buffer; oneDNN's allocator requests only large ones from it
        uses_bfc = os.environ.get(_BFC_SWITCH, "").lower() in ("1", "true")
        if on_cpu and onednn is None:
            raise RuntimeError("this TensorFlow does not report whether it uses oneDNN's kernels")
        threads = self._library.config.threading.get_inter_op_parallelism_threads() or os.environ.get(_THREADS)
        return StepFootprint(
            step,
            onednn=bool(onednn),
            threads=int(threads or os.cpu_count() or 1),
            least_bytes=_ONEDNN_LEAST_BYTES if on_cpu and onednn and not uses_bfc else 1,
        )

    def _exhausted(self, error: BaseException) -> FailureKind | None:
        errors, message = self._library.errors, exhaustion.message_of(error)
        failed = exhaustion.FAILED_ALLOCATION.search(message)
        if isinstance(error, errors.OpError):
            if exhaustion.HOST.search(message):
                return FailureKind.HOST_OOM
            is_other = _NETWORK.search(message) or exhaustion.ON_CHIP.search(message)
            is_exhausted = isinstance(error, errors.ResourceExhaustedError) and not is_other
            return FailureKind.DEVICE_OOM if is_exhausted or failed else None
        # a C++ status that was raised outside an operation is a RuntimeError
        is_status = type(error) is RuntimeError and "RESOURCE_EXHAUSTED: " in message
        return FailureKind.DEVICE_OOM if is_status and failed else None

    def versions(self) -> dict[str, str]:
        return {**super().versions(), "oneDNN": {True: "on", False: "off", None: "unknown"}[uses_onednn()]}


def uses_onednn() -> bool | None:
    """Return whether TensorFlow uses oneDNN's kernels on the CPU; None if this version does not report it."""
    # By default, TensorFlow uses them on processors with AVX-512 VNNI or newer extensions; on x86, `TF_ENABLE_ONEDNN_OPTS`
    # overrides the default. TensorFlow has no public function that reports it.
    try:
        from tensorflow.python.util import _pywrap_util_port  # heavy: must stay out of the parent

        return bool(_pywrap_util_port.IsMklEnabled())
    except (ImportError, AttributeError):
        return None


def _with_allocators(placement: Placement) -> list[str]:
    """Return TensorFlow's names of the devices that have an allocator; the logical devices of a CPU share one."""
    return [f"GPU:{index}" for index in range(len(placement.gpus))] or ["CPU:0"]
