"""The torch backend: device limits, memory peaks, signs of OOM, and memory estimates."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from autofit.backends import exhaustion, keras_config
from autofit.backends.protocol import StepEstimator
from autofit.errors import UsageError
from autofit.records.distribution import install_command
from autofit.records.machine import Device, Placement
from autofit.records.states import FailureKind

_SWITCHES = (
    "CUDA_LAUNCH_BLOCKING",
    "CUDNN_LOGINFO_DBG",
    "KERAS_BACKEND",
    "KERAS_MAX_STEPS_PER_EPOCH",
    "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
)
_SWITCH_PREFIXES = ("TORCH_", "TORCHINDUCTOR_")
_CACHE = "TORCHINDUCTOR_CACHE_DIR"
_HOST = re.compile(r"DefaultCPUAllocator: (?:can't|not enough)|(?<!OutOf)MemoryError\b|std::bad_alloc")
_DEVICE = re.compile(r"CUDA out of memory|CUDA error: out of memory|(?:CUDNN|CUBLAS)_STATUS_ALLOC_FAILED|HIP out of memory")


class Torch:
    """The torch backend of Keras; torch is imported by the methods that need it, in a trial's process only."""

    name = "torch"
    oom_lines = re.compile(r"(?P<report>CUDA out of memory\. Tried to allocate|CUDA error: out of memory)")
    shortage_lines = re.compile(r"(?P<report>CUDA out of memory|(?:CUDNN|CUBLAS)_STATUS_ALLOC_FAILED)")
    fallback_lines = re.compile(r"(?!)")  # none: `retries` counts them
    suspects = exhaustion.SUSPECTS
    outside_pool = re.compile(r"CUBLAS_STATUS_(?:NOT_INITIALIZED|ALLOC_FAILED)|CUDNN_STATUS_NOT_INITIALIZED")
    limits_cpu = False
    steps_are_async = True
    steps_ahead = 0
    uses_tfdata = False
    distribution = ""  # Keras 3.15 has none on torch; one process for each GPU, as torchrun starts them, is no `fit` call
    needs_even_batches = False

    def environment(self, placement: Placement, cache: Path) -> dict[str, str]:
        """Select the device by UUID, and let the processes share what they compile."""
        variables = {
            "KERAS_BACKEND": self.name,
            "CUDA_VISIBLE_DEVICES": placement.device.uuid if placement.device else "-1",
            "TF_CPP_MIN_LOG_LEVEL": "0",
        }
        if placement.device is None:
            variables["KERAS_TORCH_DEVICE"] = "cpu"
        return variables if _CACHE in os.environ else {**variables, _CACHE: str(cache)}

    def preload(self) -> None:
        """Import torch and Keras.

        Raises:
            UsageError: Keras is configured for another backend.
        """
        keras_config.import_keras(self.name)

    def set_limit(self, placement: Placement, limit_bytes: int | None) -> None:
        """Set the share of a GPU that torch's caching allocator may take.

        Raises:
            UsageError: torch does not see the GPU.
        """
        if placement.device is None:
            return
        torch = _torch()
        if not torch.cuda.is_available():
            raise UsageError(
                f"torch does not see the GPU that the driver reports ({placement.name}): install it with its CUDA "
                f"libraries ({install_command('torch-gpu')}), or set device: cpu"
            )
        if limit_bytes is not None:
            torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / placement.device.total_bytes))

    def distributing(self, placement: Placement) -> AbstractContextManager[Any]:
        """See `Backend.distributing`: there is no way that autofit supports, which the request says."""
        raise NotImplementedError

    def problems(self, device: Device | None, limit_bytes: int | None) -> tuple[str, ...]:
        """See `Backend.problems`."""
        if device is not None and os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING", "0") not in ("", "0"):
            return ("PYTORCH_NO_CUDA_MEMORY_CACHING: no limit of device memory holds a trial back",)
        return ()

    def pool_bytes(self, device: Device | None) -> int | None:
        """See `Backend.pool_bytes`: torch takes all that is free."""
        return None

    def has_started(self) -> bool:
        """Return whether torch uses a GPU; on a CPU there is nothing to start."""
        torch = sys.modules.get("torch")
        return torch is not None and bool(torch.cuda.is_initialized())

    def start(self) -> None:
        """See `Backend.start`: an operation that is large enough for torch's threads."""
        torch = _torch()
        torch.ones((512, 512)) @ torch.ones((512, 512))

    def peak_bytes(self, placement: Placement) -> int | None:
        """Return the peak of what tensors took, without what the allocator keeps for later; None on a CPU."""
        return None if placement.device is None else int(_torch().cuda.max_memory_allocated())

    def reset_peak(self, placement: Placement) -> None:
        """Reset the peak to what is in use."""
        _torch().cuda.reset_peak_memory_stats()

    def retries(self, placement: Placement) -> int:
        """See `Backend.retries`."""
        return 0 if placement.device is None else int(_torch().cuda.memory_stats().get("num_alloc_retries", 0))

    def end_of(self, logs: Any) -> Callable[[], None] | None:
        """See `Backend.end_of`: a step on a CPU is over when it returns."""
        torch = _torch()
        if not torch.cuda.is_initialized():
            return None
        ended = torch.cuda.Event()
        ended.record()
        wait: Callable[[], None] = ended.synchronize
        return wait

    def takes_turns(self, device: Device | None) -> bool:
        """See `Backend.takes_turns`: on a CPU a step has the training thread to itself."""
        return device is None

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
        """See `Backend.estimator`: by two small steps that run, whose tensors are counted."""
        from autofit.backends.torch.step_footprint import StepFootprint  # heavy: must stay out of the parent

        return StepFootprint(model, batch, on_cpu=device is None, multiple_of=multiple_of)

    def exhausted(self, error: BaseException) -> FailureKind | None:
        """See `Backend.exhausted`. Errors of the user's own types stay his, whatever they say."""
        torch = _torch()
        for link in exhaustion.chain(error):
            if isinstance(link, torch.OutOfMemoryError):
                return FailureKind.DEVICE_OOM
            if exhaustion.is_of_tensorflow(link):  # of a `tf.data` pipeline, whose memory is the host's
                return FailureKind.HOST_OOM
            if type(link) is RuntimeError or isinstance(link, getattr(torch, "AcceleratorError", ())):
                message = str(link)
                if _HOST.search(message):
                    return FailureKind.HOST_OOM
                if _DEVICE.search(message):
                    return FailureKind.DEVICE_OOM
        return None

    def settings(self) -> dict[str, str]:
        """See `Backend.settings`."""
        in_force = {**switches(os.environ), "KERAS_BACKEND": self.name}
        return keras_config.settings_in_force(("torch", "keras", "numpy"), in_force, os.environ)

    def versions(self) -> dict[str, str]:
        """Return the versions of torch, Keras and NumPy."""
        import keras  # heavy: must stay out of the parent
        import numpy as np  # only for its version

        return {"torch": str(_torch().__version__), "keras": str(keras.__version__), "numpy": np.__version__}


def switches(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that affect a step's speed and memory."""
    return {
        name: value
        for name, value in environment.items()
        if name in _SWITCHES or (name.startswith(_SWITCH_PREFIXES) and name != _CACHE)
    }


def _torch() -> Any:
    import torch  # heavy: must stay out of the parent

    return torch
