"""The TensorFlow backend: device limits, memory peaks, OOM detection and memory estimates."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import inspect
import os
import re
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Any

from autofit.backends import exhaustion
from autofit.backends.protocol import Backend, ProgramSetting, WaitForEnd
from autofit.errors import UsageError
from autofit.records import cuda_memory
from autofit.records.machine import Device, Placement
from autofit.records.states import FailureKind
from autofit.records.units import format_bytes

_MIB = 2**20
_MUCH_SHARE = 0.1  # of a GPU's limit: larger copies of the data get a notice
# memory that TensorFlow leaves to libraries, by compute capability and for a small GPU
# (MinSystemMemory in gpu_device.cc)
_RESERVES_MIB = {9: 1800, 8: 1536, 7: 1050, 0: 500}
_RESERVE = "TF_DEVICE_MIN_SYS_MEMORY_IN_MB"  # replaces them, in MiB
_SMALL_BYTES = 2 * 2**30
_SMALL_RESERVE_MIB = 225
_XLA_FLAGS = "XLA_FLAGS"
_CACHE_FLAGS = {
    "TF_XLA_FLAGS": "--tf_xla_persistent_cache_directory",
    _XLA_FLAGS: "--xla_gpu_per_fusion_autotune_cache_dir",
}
# the first version known to have the flags: XLA aborts on an unknown flag
_FIRST_VERSION = (2, 21)
_CUDA_CACHE_BYTES = 4 * 2**30  # the most that CUDA allows
_CONTEXT = "tensorflow.python.eager.context"  # private; it must stay out of the parent
# The public function that reads the threads lists the devices, and thus starts CUDA in the user's
# program.
_THREADS = f"sys.modules.get({_CONTEXT!r}).context_safe()"
# not out of memory
_NETWORK = re.compile(
    r"message larger than max|HTTP (?:request|response)|quota", re.IGNORECASE
)


class TensorFlow(Backend):
    """The TensorFlow backend of Keras. Its methods import TensorFlow when they need it, only in a
    trial's process.
    """

    name = "tensorflow"
    title = "TensorFlow"
    gpu_extra = "gpu"
    import_line = "import tensorflow as tf"
    program_settings = (
        ProgramSetting(
            f"{_THREADS}._intra_op_parallelism_threads",
            "None",
            "tf.config.threading.set_intra_op_parallelism_threads({!r})",
        ),
        ProgramSetting(
            f"{_THREADS}._inter_op_parallelism_threads",
            "None",
            "tf.config.threading.set_inter_op_parallelism_threads({!r})",
        ),
        ProgramSetting(
            "tf.config.experimental.tensor_float_32_execution_enabled()",
            "True",
            "tf.config.experimental.enable_tensor_float_32_execution({!r})",
        ),
    )
    switch_prefixes = ("TF_", "XLA_FLAGS")
    # of logs
    no_switches = frozenset(
        {"TF_CPP_MIN_LOG_LEVEL", "TF_CPP_MAX_VLOG_LEVEL", "TF_CPP_VMODULE"}
    )
    limits_cpu = True
    steps_are_async = False
    uses_tfdata = True
    creates_variables_in_step = True
    unlimited = (
        ("TF_GPU_ALLOCATOR", "^cuda_malloc(_async)?$"),
        ("TF_FORCE_UNIFIED_MEMORY", "^(1|true)$"),
    )
    no_code_remedy = (
        "set backend to jax or torch, or use NVIDIA's container with TensorFlow"
    )
    limit_code = (
        'tf.config.set_logical_device_configuration(tf.config.list_physical_devices("GPU")[0], '
        "[tf.config.LogicalDeviceConfiguration(memory_limit={mib})])"
    )
    distribution = "MirroredStrategy"
    distribution_import = import_line

    @classmethod
    def holds_gpu_memory(cls) -> bool:
        eager = sys.modules.get(_CONTEXT)
        if eager is None:
            return False
        context = eager.context_safe()
        # it has no handle before the first operation
        return context._context_handle is not None and bool(
            context.list_logical_devices("GPU")
        )

    def environment(self, placement: Placement, cache: Path) -> dict[str, str]:
        variables = super().environment(placement, cache)
        if not placement.gpus:
            return {**variables, "HIP_VISIBLE_DEVICES": "-1"}  # hides AMD GPUs
        return {
            **variables,
            **cache_variables(
                os.environ, cache, importlib.metadata.version("tensorflow")
            ),
        }

    def end_of(self, outputs: Any) -> WaitForEnd:
        # unlike `fit`, `predict` does not wait for its steps on a GPU: fetching an output does
        tensors = self._library.nest.flatten(outputs)
        first = next((tensor for tensor in tensors if hasattr(tensor, "numpy")), None)
        if first is None:
            return None

        def fetch() -> None:
            (first[:1] if len(first.shape) else first).numpy()

        return fetch

    def prepare_estimates(self) -> None:
        xla_reports()

    def set_limit(self, placement: Placement, limit_bytes: int | None) -> None:
        tf = self._library
        if not placement.gpus:
            if placement.count > 1:
                logical = [tf.config.LogicalDeviceConfiguration()] * placement.count
                tf.config.set_logical_device_configuration(
                    tf.config.list_physical_devices("CPU")[0], logical
                )
            # The BFC allocator counts memory and can be capped, with and without oneDNN (measured
            # with 2.18 and 2.21). Without a limit, TensorFlow keeps its default allocator, which is
            # slightly faster or slower.
            if limit_bytes is not None:
                os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "1"
                os.environ["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(
                    max(1, limit_bytes // _MIB)
                )
            return
        if limit_bytes is None:
            return
        seen = tf.config.list_physical_devices("GPU")
        if len(seen) < placement.count:
            raise self._unseen_gpus(placement)
        for device in seen[: placement.count]:
            enforce_limit(import_module(_CONTEXT).context(), device, limit_bytes)

    def keep_to_one_host(self) -> None:
        distribute = self._library.distribute
        for name in ("MultiWorkerMirroredStrategy", "ParameterServerStrategy"):
            strategy = getattr(distribute, name)
            strategy.__init__ = _on_one_host(
                strategy.__init__, name, distribute.cluster_resolver
            )

    def problems(
        self, gpu: Device, limit_bytes: int | None, array_bytes: int = 0
    ) -> Iterator[str]:
        yield from super().problems(gpu, limit_bytes, array_bytes)
        # other backends copy only batches
        if limit_bytes and array_bytes > _MUCH_SHARE * limit_bytes:
            yield (
                f"Keras copies the arrays to the GPU ({format_bytes(array_bytes)} of "
                f"{format_bytes(limit_bytes)}), which "
                "leaves less memory for batches. A keras.utils.PyDataset or a tf.data.Dataset "
                "keeps them in host memory"
            )

    def distributing(self, placement: Placement) -> AbstractContextManager[Any]:
        # uses all visible GPUs or, without any, all logical devices of the CPU
        scope: AbstractContextManager[Any] = (
            self._library.distribute.MirroredStrategy().scope()
        )
        return scope

    def distributed_lines(self, assignment: str) -> list[str]:
        return [
            "with tf.distribute.MirroredStrategy().scope():",
            textwrap.indent(assignment, "    "),
        ]

    def distribution_of(self, model: Any) -> tuple[str, int] | None:
        strategy = getattr(model, "distribute_strategy", None)
        if strategy is None or strategy is self._library.distribute.get_strategy():
            return super().distribution_of(model)
        return type(strategy).__name__, int(strategy.num_replicas_in_sync)

    def pool_bytes(self, device: Device | None) -> int | None:
        if device is None or device.compute_capability is None:
            return None
        free = device.free_bytes - cuda_memory.CONTEXT_BYTES
        major = device.compute_capability[0]
        by_generation = next(
            mib for generation, mib in _RESERVES_MIB.items() if major >= generation
        )
        reserve = _SMALL_RESERVE_MIB if free < _SMALL_BYTES else by_generation
        with contextlib.suppress(ValueError):
            reserve = int(os.environ.get(_RESERVE, ""))
        return max(0, free - _MIB * reserve)

    def peak_bytes(self, placement: Placement) -> int | None:
        # the first operation creates TensorFlow's context
        if (
            getattr(import_module(_CONTEXT).context_safe(), "_context_handle", None)
            is None
        ):
            return None
        read = self._library.config.experimental.get_memory_info
        try:
            return max(int(read(name)["peak"]) for name in _with_allocators(placement))
        except ValueError:  # the CPU's default allocator without oneDNN does not count
            return None

    def reset_peak(self, placement: Placement, *, release: bool) -> None:
        for name in _with_allocators(placement):
            self._library.config.experimental.reset_memory_stats(name)

    def decide_as_on_gpu(self) -> None:
        # there, `jit_compile="auto"` turns XLA on if all layers allow it; Keras has no public
        # function that decides it
        import keras  # heavy: must stay out of the parent

        # not of the trainer, whose class has another name in Keras after 3.15.1
        supports_xla = import_module("keras.src.trainers.trainer").model_supports_jit
        keras.Model._resolve_auto_jit_compile = supports_xla

    def _exhausted(self, error: BaseException) -> FailureKind | None:
        errors = self._library.errors
        message = exhaustion.message_of(error)
        failed = exhaustion.FAILED_ALLOCATION.search(message)
        if isinstance(error, errors.OpError):
            if exhaustion.HOST.search(message):
                return FailureKind.HOST_OOM
            is_other = _NETWORK.search(message) or exhaustion.ON_CHIP.search(message)
            is_exhausted = (
                isinstance(error, errors.ResourceExhaustedError) and not is_other
            )
            return FailureKind.DEVICE_OOM if is_exhausted or failed else None
        # a C++ status that was raised outside an operation is a RuntimeError
        is_status = type(error) is RuntimeError and "RESOURCE_EXHAUSTED: " in message
        return FailureKind.DEVICE_OOM if is_status and failed else None

    def versions(self) -> dict[str, str]:
        return {**super().versions(), "oneDNN": "on" if uses_onednn() else "off"}


@functools.cache
def xla_reports() -> Path:
    """Return the folder for XLA's reports on the memory of each program that it compiles here."""
    folder = Path(tempfile.mkdtemp(prefix="autofit-xla-"))
    flags = os.environ.get(_XLA_FLAGS, "")
    os.environ[_XLA_FLAGS] = (
        f"{flags} --xla_dump_to={folder} --xla_dump_hlo_as_text".strip()
    )
    return folder


def uses_onednn() -> bool:
    """Return whether TensorFlow uses oneDNN's kernels on the CPU; False if this version does not
    report it.
    """
    # By default, TensorFlow uses them on processors with AVX-512 VNNI or newer extensions; on x86,
    # `TF_ENABLE_ONEDNN_OPTS` overrides the default. TensorFlow has no public function that reports
    # it.
    try:
        # heavy: must stay out of the parent
        from tensorflow.python.util import _pywrap_util_port

        return bool(_pywrap_util_port.IsMklEnabled())
    except (ImportError, AttributeError):
        return False  # other kernels need more memory for workspaces


def _with_allocators(
    placement: Placement,
) -> list[str]:  # the logical devices of a CPU share one
    return [f"GPU:{index}" for index in range(len(placement.gpus))] or ["CPU:0"]


def cache_variables(
    present: Mapping[str, str], folder: Path, version: str
) -> dict[str, str]:
    """Return the environment variables that turn on the caches; settings `present` in the user's
    environment are kept.
    """
    # A tune starts about twenty processes, and each would compile the same steps again. XLA
    # therefore caches compiled programs and chosen kernels in the tune's folder. CUDA has its own
    # cache, which all programs share: for GPUs of compute capability 9.0 and newer, CUDA compiles
    # some of TensorFlow's kernels, which take more space than this cache has by default.
    variables = {
        "CUDA_CACHE_MAXSIZE": present.get("CUDA_CACHE_MAXSIZE", str(_CUDA_CACHE_BYTES))
    }
    if tuple(map(int, re.findall(r"\d+", version)[:2])) >= _FIRST_VERSION:
        for name, flag in _CACHE_FLAGS.items():
            flags = present.get(name, "")
            if flag not in flags:
                variables[name] = f"{flags} {flag}={folder}".strip()
    return variables


def _on_one_host(
    make: Callable[..., None], name: str, resolvers: Any
) -> Callable[..., None]:
    """Return the constructor of a strategy that refuses a cluster before it waits for its hosts."""
    signature = inspect.signature(make)

    @functools.wraps(make)
    def make_on_one_host(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs).arguments.get("cluster_resolver")
        cluster = (given or resolvers.TFConfigClusterResolver()).cluster_spec()
        jobs = set(cluster.jobs) - {"evaluator"}  # which does not train
        tasks = sum(map(cluster.num_tasks, jobs))
        if tasks > 1:
            raise UsageError(
                f"several hosts cannot be tuned: your code makes a {name} for a cluster of {tasks} "
                "tasks. To tune for one host, unset TF_CONFIG or build the model without it"
            )
        make(self, *args, **kwargs)

    return make_on_one_host


def enforce_limit(context: Any, gpu: Any, limit_bytes: int) -> None:
    """Set the limit of a `PhysicalDevice`, in whole MiB, and keep user code, which is loaded later,
    from changing it.
    """
    # A limit must hold whatever the user's code configures. TensorFlow itself does not ensure that:
    # if a GPU has a limit, a call that turns on memory growth raises an error, although
    # TensorFlow's guide contains this call; a later limit replaces an earlier one; and a program
    # that hides the GPU trains on the CPU without a message. All public functions for these
    # settings call methods of one context object, which are replaced here.
    # heavy: must stay out of the parent
    from tensorflow.config import LogicalDeviceConfiguration

    limit = max(1, limit_bytes // _MIB)
    context.set_logical_device_configuration(
        gpu, [LogicalDeviceConfiguration(memory_limit=limit)]
    )
    set_growth = context.set_memory_growth
    set_logical = context.set_logical_device_configuration
    set_visible = context.set_visible_devices

    def set_memory_growth(dev: Any, enable: bool) -> None:
        # ignored for the limited GPU: growth changes when memory is taken, not how much
        if dev != gpu:
            set_growth(dev, enable)

    def set_logical_device_configuration(
        dev: Any, virtual_devices: Sequence[Any]
    ) -> None:
        wanted = min(
            (int(each.memory_limit or limit) for each in virtual_devices), default=limit
        )
        if dev != gpu:
            set_logical(dev, virtual_devices)
        elif wanted < limit:
            # the search must know a lower limit; a higher one has no effect
            raise UsageError(
                f"your code limits the GPU to {format_bytes(wanted * _MIB)} "
                "(set_logical_device_configuration), less than "
                f"autofit's limit of {format_bytes(limit * _MIB)}; set device_memory: {wanted}MiB",
                key="device_memory",
            )

    def set_visible_devices(devices: Any, device_type: str | None = None) -> None:
        visible = devices if isinstance(devices, list) else [devices]
        if device_type in (None, "GPU") and gpu not in visible:
            raise UsageError(
                "your code hides the GPU from TensorFlow (set_visible_devices); leave it visible, "
                "or set device: cpu",
                key="device",
            )
        set_visible(devices, device_type)

    for changed in (
        set_memory_growth,
        set_logical_device_configuration,
        set_visible_devices,
    ):
        setattr(context, changed.__name__, changed)
