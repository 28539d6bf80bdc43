"""The JAX backend: device limits, memory peaks, OOM detection and memory estimates."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from autofit.backends import absent_gpu, exhaustion
from autofit.backends.protocol import Backend, ProgramSetting, WaitForEnd
from autofit.errors import UsageError
from autofit.records.machine import Device, Placement
from autofit.records.states import FailureKind
from autofit.records.units import format_bytes

# JAX rejects both at once
_FRACTION = "XLA_CLIENT_MEM_FRACTION"
_OLD_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_DEFAULT_FRACTION = 0.75  # the share of a GPU's memory that JAX takes by default
# the share is written with six digits, and XLA rounds it to whole pages (assumed)
_MOST_OVER_LIMIT = 1.01
# of Keras after 3.15.1 alone: a private function that makes one program of all steps in a call
_SCAN = "_build_multi_step_scan"
_PLATFORMS = "JAX_PLATFORMS"
_GPU_PLATFORMS = {"cuda", "gpu"}  # names that it has for GPUs of NVIDIA
_CACHE = "JAX_COMPILATION_CACHE_DIR"
_CACHE_ALL = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
# steps that JAX's client for the CPU dispatches ahead (measured with JAX 0.10)
_STEPS_AHEAD = 32
BATCHES_ON_GPU = 2  # Keras copies the next batch to a GPU during a step
_SPARE_THREADS = 4  # per device, for other work of the client (assumed)


class Jax(Backend):
    """The JAX backend of Keras. Its methods import JAX when they need it, only in a trial's
    process.
    """

    name = "jax"
    title = "JAX"
    gpu_extra = "jax-gpu"
    import_line = "import jax"
    program_settings = (
        ProgramSetting(
            "jax.config.jax_enable_x64",
            "False",
            "jax.config.update('jax_enable_x64', {!r})",
        ),
        ProgramSetting(
            "jax.config.jax_default_matmul_precision",
            "None",
            "jax.config.update('jax_default_matmul_precision', {!r})",
        ),
    )
    switch_prefixes = ("JAX_", "XLA_")
    no_switches = frozenset({_CACHE, *_CACHE_ALL})
    steps_ahead = _STEPS_AHEAD
    is_stateless = True
    unlimited = (  # allocators without a pool, and pools that grow
        ("XLA_PYTHON_CLIENT_ALLOCATOR", "^(platform|cuda_async|vmm|address)$"),
        ("XLA_FLAGS", r"--xla_gpu_memory_fraction_policy=\S+"),
        ("TF_FORCE_UNIFIED_MEMORY", "^(1|true)$"),
    )
    limit_code = f"{_FRACTION}={{share:.2f}}"
    compiles_whole_calls = False
    seconds_to_oom = 20.0  # on an H200: 13 to 27
    distribution = "DataParallel"
    distribution_import = "import keras"
    fork_problem_on_gpu = (
        "worker processes are not tried: Keras forks them from a process in which JAX uses the "
        "GPU, and they hang "
        "(keras-team/keras issue 20619). Use threads"
    )

    @classmethod
    def holds_gpu_memory(cls) -> bool:
        bridge = sys.modules.get("jax._src.xla_bridge")
        clients = {} if bridge is None else bridge._backends
        return any(
            (device.memory_stats() or {}).get("pool_bytes")
            for platform, client in clients.items()
            if platform != "cpu"
            for device in client.local_devices()
        )

    def environment(self, placement: Placement, cache: Path) -> dict[str, str]:
        variables = super().environment(placement, cache)
        if not placement.gpus:
            variables[_PLATFORMS] = "cpu"
            # In an all-reduce, each device holds a thread until the other devices arrive. All
            # dispatched steps share one thread pool, which has one thread for each core by default.
            # With few cores, a later step may hold the threads that an earlier step needs, and
            # training hangs (measured: each time with 192 samples on 2 devices and 2 cores;
            # `jax_cpu_enable_async_dispatch` does not prevent it). Therefore the pool gets, for
            # each device, a thread for each step that may be dispatched ahead and a few spare ones.
            if placement.count > 1:
                variables["JAX_NUM_CPU_DEVICES"] = str(placement.count)
                variables["PJRT_NPROC"] = str(
                    placement.count * (_STEPS_AHEAD + _SPARE_THREADS)
                )
        if _CACHE not in os.environ:
            variables |= {_CACHE: str(cache), **_CACHE_ALL}
        return variables

    def preload(self) -> None:
        super().preload()
        # so that `set_limit` can hide the GPU from it; otherwise a `tf.data.Dataset` of the user
        # would take the GPU's memory
        if (
            os.environ.get("CUDA_VISIBLE_DEVICES") != "-1"
            and importlib.util.find_spec("tensorflow") is not None
        ):
            import tensorflow  # noqa: F401  # heavy: must stay out of the parent

    def set_limit(self, placement: Placement, limit_bytes: int | None) -> None:
        # JAX reads the share of each GPU's memory that its allocator may take at its first
        # operation
        if not placement.gpus:
            return
        tensorflow = sys.modules.get("tensorflow")
        if tensorflow is not None:
            tensorflow.config.set_visible_devices([], "GPU")
        if limit_bytes is not None:
            os.environ.pop(_OLD_FRACTION, None)
            # JAX takes a share of CUDA's total, which is less than the driver's by up to 3%: so is
            # the limit
            total_bytes = min(gpu.total_bytes for gpu in placement.gpus)
            os.environ[_FRACTION] = f"{min(1.0, limit_bytes / total_bytes):.6f}"
        jax = self._library
        if jax.default_backend() == "cpu" or jax.local_device_count() < placement.count:
            platforms = os.environ.get(_PLATFORMS, "")
            if platforms and not _GPU_PLATFORMS & {*platforms.split(",")}:
                raise UsageError(
                    f"{_PLATFORMS}={platforms} hides the GPU from JAX: "
                    "unset it, or set device: cpu",
                    key="device",
                )
            raise self._unseen_gpus(placement)
        # what is set elsewhere may overrule the share without a word
        pool_bytes = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 0)
        if limit_bytes is not None and pool_bytes > _MOST_OVER_LIMIT * limit_bytes:
            raise UsageError(
                f"JAX takes up to {format_bytes(pool_bytes)} of the GPU, although {_FRACTION} "
                "allows it "
                f"{format_bytes(limit_bytes)}; remove what sets its memory otherwise, such as "
                "XLA_FLAGS",
                key="device_memory",
            )

    def distributing(self, placement: Placement) -> AbstractContextManager[Any]:
        import keras  # heavy: must stay out of the parent

        # stays set after the block
        keras.distribution.set_distribution(keras.distribution.DataParallel())
        return contextlib.nullcontext()

    def distributed_lines(self, assignment: str) -> list[str]:
        return [
            "keras.distribution.set_distribution(keras.distribution.DataParallel())",
            assignment,
        ]

    def pool_bytes(self, device: Device | None) -> int | None:
        if device is None:
            return None
        written = os.environ.get(_FRACTION) or os.environ.get(_OLD_FRACTION)
        try:
            fraction = float(written) if written else _DEFAULT_FRACTION
        except ValueError:
            return None
        return min(device.free_bytes, round(fraction * device.total_bytes))

    def start(self) -> None:
        jax = self._library
        jax.block_until_ready(jax.jit(lambda x: x @ x)(jax.numpy.ones((64, 64))))

    def compile_clock(self) -> Callable[[], float]:
        durations = list[float]()

        def listen(event: str, seconds: float, **_: Any) -> None:
            if event.startswith("/jax/core/compile/"):
                durations.append(seconds)

        self._library.monitoring.register_event_duration_secs_listener(listen)
        return lambda: sum(durations)

    def peak_bytes(self, placement: Placement) -> int | None:
        if not placement.gpus:  # JAX does not count there
            return None
        devices = self._library.local_devices()[: placement.count]
        counts = [device.memory_stats() for device in devices]
        if None in counts:
            return None
        # The allocator's own peak cannot be reset, and in a process that compiles, it contains the
        # buffers with which XLA tries algorithms. It is the bound of what the programs themselves
        # need: the arrays that live now, the batches of the step and of the next one, and one block
        # of temporaries and results (measured by others on a GPU, to 0.01%). What a program
        # replaces is the state of training; its other arguments are the batch. A program that
        # replaces nothing, as in inference, is taken to have all that lives now as its state.
        peak = max(int(memory["peak_bytes_in_use"]) for memory in counts)
        in_use = max(int(memory["bytes_in_use"]) for memory in counts)
        beyond = self._beyond_state(devices[0].client, in_use)
        return min(peak, in_use + max(beyond)) if beyond else peak

    def _beyond_state(self, client: Any, in_use: int) -> list[int]:
        programs = []
        # a plugin may not report them
        with contextlib.suppress(AttributeError, self._library.errors.JaxRuntimeError):
            programs = [
                each.get_compiled_memory_stats() for each in client.live_executables()
            ]
        beyond = []
        for program in programs:
            arguments, temporaries = absent_gpu.compiled_bytes(program)
            batch = max(0, arguments - (program.alias_size_in_bytes or in_use))
            beyond.append(BATCHES_ON_GPU * batch + temporaries)
        return beyond

    def stacks_steps(self) -> bool:
        # also without `jit_compile`: then it takes the stack apart again
        return hasattr(importlib.import_module("keras.src.backend.jax.trainer"), _SCAN)

    def end_of(self, outputs: Any) -> WaitForEnd:
        return functools.partial(self._library.block_until_ready, outputs)

    def on_device(self, batch: Any) -> Any:
        return self._library.tree.map(self._library.device_put, batch)

    def wait_for_copies(self, batch: Any) -> None:
        self._library.block_until_ready(batch)

    def _exhausted(self, error: BaseException) -> FailureKind | None:
        message = exhaustion.message_of(error)
        if isinstance(error, self._library.errors.JaxRuntimeError):
            if exhaustion.HOST.search(message):
                return FailureKind.HOST_OOM
            is_exhausted = (
                "RESOURCE_EXHAUSTED" in message
                and not exhaustion.ON_CHIP.search(message)
            )
            if is_exhausted or exhaustion.FAILED_ALLOCATION.search(message):
                return FailureKind.DEVICE_OOM
        # of a `tf.data` pipeline
        return FailureKind.HOST_OOM if exhaustion.is_of_tensorflow(error) else None
