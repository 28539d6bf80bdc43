"""The torch backend: device limits, memory peaks, OOM detection and memory estimates."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autofit.backends import exhaustion
from autofit.backends.protocol import Backend, ProgramSetting, WaitForEnd
from autofit.records import cuda_memory
from autofit.records.machine import Device, Placement
from autofit.records.states import FailureKind
from autofit.records.units import counted

_CACHE = "TORCHINDUCTOR_CACHE_DIR"
_KERAS_DEVICE = "KERAS_TORCH_DEVICE"
_HOST = re.compile(
    r"DefaultCPUAllocator: (?:can't|not enough)|(?<!OutOf)MemoryError\b|std::bad_alloc"
)
_CONVOLUTION = re.compile(
    r"unable to find an engine to execute this computation|find a valid cuDNN algorithm"
)
_NOT_STARTED = re.compile(r"(?:CUBLAS|CUDNN)_STATUS_NOT_INITIALIZED")
# of a call of CUDA, not of torch's allocator (torch 2.14 says it in its own words)
_OUTSIDE = r"CUDA (?:driver )?error: out of memory|ran out of memory outside PyTorch's allocator"
_DEVICE = re.compile(
    rf"CUDA out of memory|{_OUTSIDE}|(?:CUDNN|CUBLAS)_STATUS_ALLOC_FAILED|HIP out of memory"
)
# the first of them that is set counts (CUDAAllocatorConfig.h of torch 2.13)
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_FRACTION = re.compile(r"per_process_memory_fraction:\s*(\d*\.?\d+)")
# of the memory that the allocator reserves to what tensors take: more is said
_LOOSE_RATIO = 1.2
_LEAST_SHARE = 0.5  # of the limit: in less memory, the ratio does not matter


class Torch(Backend):
    """The torch backend of Keras. Its methods import torch when they need it, only in a trial's
    process.
    """

    # It has no `distribution`: Keras 3.15 offers none on torch, and torchrun, which starts a
    # process for each GPU, is not a single `fit` call.
    name = "torch"
    title = "torch"
    gpu_extra = "torch-gpu"
    import_line = "import torch"
    program_settings = (
        ProgramSetting(
            "torch.get_float32_matmul_precision()",
            "'highest'",
            "torch.set_float32_matmul_precision({!r})",
        ),
        # By default, torch uses a thread for each physical core; on a processor where it does not,
        # trials set what it uses.
        ProgramSetting(
            "torch.get_num_threads()",
            "psutil.cpu_count(logical=False)",
            "torch.set_num_threads({!r})",
        ),
    )
    oom_lines = re.compile(
        rf"(?P<report>CUDA out of memory\. Tried to allocate|{_OUTSIDE})"
    )
    shortage_lines = re.compile(
        r"(?P<report>CUDA out of memory|(?:CUDNN|CUBLAS)_STATUS_ALLOC_FAILED)"
    )
    outside_pool = re.compile(
        rf"CUBLAS_STATUS_(?:NOT_INITIALIZED|ALLOC_FAILED)|CUDNN_STATUS_NOT_INITIALIZED|{_OUTSIDE}"
    )
    no_code_remedy = (
        "install a build for it (pytorch.org; below 7.5, one for CUDA 12.6), or set backend to "
        "another one"
    )
    limit_code = "torch.cuda.set_per_process_memory_fraction({share:.2f})"
    unlimited = (("PYTORCH_NO_CUDA_MEMORY_CACHING", "^(?!0$).+"),)
    switch_prefixes = ("PYTORCH_", "TORCH_", "TORCHINDUCTOR_")
    # the latter is set by scripts for any machine
    no_switches = frozenset({_CACHE, "PYTORCH_ENABLE_MPS_FALLBACK"})
    has_steps_per_execution = False  # of Keras 3.15
    compiler = "torch.compile"
    plans_memory = False
    # measured on two cores: 28 s for a small CNN, 107 s for ResNet50
    compile_seconds = 300.0
    compiles_for_absent_gpus = False
    seconds_to_oom = 1.0  # on an H200: 0.3 to 1.1
    alternates_on_cpu = True  # a step occupies the training thread there
    _allocated_bytes = 0  # the highest peak of tensors so far

    @classmethod
    def holds_gpu_memory(cls) -> bool:
        torch = sys.modules.get(cls.name)
        if torch is None or not torch.cuda.is_initialized():
            return False
        return any(map(torch.cuda.memory_reserved, range(torch.cuda.device_count())))

    def environment(self, placement: Placement, cache: Path) -> dict[str, str]:
        # Without KERAS_TORCH_DEVICE, Keras asks torch whether CUDA is available, and a process that
        # is forked after that call cannot use the GPU. With PYTORCH_NVML_BASED_CUDA_CHECK, that
        # call asks only the driver.
        variables = super().environment(placement, cache)
        variables["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        # a tf.data pipeline would otherwise take the GPU's memory
        variables["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
        variables[_KERAS_DEVICE] = "cpu" if placement.device is None else "cuda"
        return variables if _CACHE in os.environ else {**variables, _CACHE: str(cache)}

    def set_limit(self, placement: Placement, limit_bytes: int | None) -> None:
        if placement.device is None:
            return
        torch = self._library
        if not torch.cuda.is_available():
            raise self._unseen_gpus(placement)
        if limit_bytes is not None:
            # less than the driver's, by up to 3%
            total_bytes = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(
                min(1.0, limit_bytes / total_bytes)
            )

    def pool_bytes(self, device: Device | None) -> int | None:
        settings = (os.environ[name] for name in _ALLOCATOR if name in os.environ)
        share = _FRACTION.search(next(settings, ""))
        if device is None or share is None:
            return None
        return min(device.free_bytes, round(float(share[1]) * device.total_bytes))

    def problems(
        self, gpu: Device, limit_bytes: int | None, array_bytes: int = 0
    ) -> Iterator[str]:
        yield from super().problems(gpu, limit_bytes, array_bytes)
        if os.environ.get(_KERAS_DEVICE, "cuda").startswith("cpu"):
            yield (
                f"{_KERAS_DEVICE}=cpu is set, so your program trains on the CPU, but trials train "
                f"on {gpu.name}. Unset "
                "this variable, or set device: cpu"
            )

    def start(self) -> None:
        torch = self._library
        torch.ones((512, 512)) @ torch.ones((512, 512))

    def peak_bytes(self, placement: Placement) -> int | None:
        if placement.device is None:
            return None
        cuda = self._library.cuda
        self._allocated_bytes = max(self._allocated_bytes, cuda.max_memory_allocated())
        # with the allocator's cache, which the limit holds as well
        return int(cuda.max_memory_reserved())

    def reset_peak(self, placement: Placement, *, release: bool) -> None:
        cuda = self._library.cuda
        if release:
            cuda.empty_cache()
            cuda.reset_accumulated_memory_stats()  # of what the first step tried
        cuda.reset_peak_memory_stats()

    def allocator_notice(self, peak_bytes: int, limit_bytes: int) -> str:
        if retries := self._library.cuda.memory_stats().get("num_alloc_retries"):
            return (
                f"torch gave back and allocated memory again {counted(retries, 'time')} to stay "
                "below the limit, which slows steps down; a smaller batch may be faster"
            )
        ratio = peak_bytes / max(1, self._allocated_bytes)
        if ratio <= _LOOSE_RATIO or peak_bytes < _LEAST_SHARE * limit_bytes:
            return ""
        return (
            f"torch reserved {ratio:.1f} times what its tensors take; "
            "PYTORCH_ALLOC_CONF=expandable_segments:True may make room for larger batches"
        )

    def end_of(self, outputs: Any) -> WaitForEnd:
        cuda = self._library.cuda
        if not cuda.is_initialized():  # on a CPU, a step has ended when it returns
            return None
        ended = cuda.Event(blocking=True)  # a wait without it occupies a core
        ended.record()
        wait: WaitForEnd = ended.synchronize
        return wait

    def on_device(self, batch: Any) -> Any:
        import keras  # heavy: must stay out of the parent

        return keras.tree.map_structure(
            lambda leaf: None if leaf is None else keras.ops.convert_to_tensor(leaf),
            batch,
        )

    def _exhausted(self, error: BaseException) -> FailureKind | None:
        torch = self._library
        if isinstance(error, torch.OutOfMemoryError):
            return FailureKind.DEVICE_OOM
        if type(error) is RuntimeError or isinstance(
            error, getattr(torch, "AcceleratorError", ())
        ):
            message = exhaustion.message_of(error)
            if _HOST.search(message):
                return FailureKind.HOST_OOM
            if _DEVICE.search(message):
                return FailureKind.DEVICE_OOM
            if _CONVOLUTION.search(message) and torch.cuda.memory_stats().get(
                "num_ooms"
            ):
                # torch drops the out-of-memory error of each algorithm of cuDNN
                return FailureKind.DEVICE_OOM
            # these libraries do not say what they lack, and torch, unlike XLA, logs nothing
            if (
                _NOT_STARTED.search(message)
                and torch.cuda.mem_get_info()[0] < cuda_memory.LEAST_LIBRARY_BYTES
            ):
                return FailureKind.DEVICE_OOM
        # of a `tf.data` pipeline
        return FailureKind.HOST_OOM if exhaustion.is_of_tensorflow(error) else None
