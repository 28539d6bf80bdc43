"""TensorFlow: limits by logical device on a GPU, by the allocator's own cap on a CPU."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autofit.errors import UsageError
from autofit.records.distribution import install_command
from autofit.records.machine import Device
from autofit.records.trial import Footprint

_MIB = 2**20
# what Keras takes where its file does not say otherwise, and writes into that file when it is first imported
_KERAS_DEFAULTS = {"floatx": "float32", "epsilon": 1e-07, "backend": "tensorflow", "image_data_format": "channels_last"}
_SWITCHES = (
    "KERAS_BACKEND",
    "KERAS_MAX_STEPS_PER_EPOCH",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "TF_DETERMINISTIC_OPS",
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "TF_GPU_ALLOCATOR",
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

    name = "tensorflow"
    # "… The caller indicates that this is not a failure" in the same line is a fallback to a slower algorithm
    oom_lines = re.compile(
        r"OOM when allocating tensor|ran out of memory trying to allocate (?!.*not a failure)|RESOURCE_EXHAUSTED: "
    )

    fallback_lines = re.compile(r"ran out of memory trying to allocate .*not a failure")

    def environment(self, device: Device | None) -> dict[str, str]:
        """The device by UUID, which does not depend on CUDA's order; and all logging, which is evidence of an OOM."""
        return {"CUDA_VISIBLE_DEVICES": device.uuid if device else "-1", "TF_CPP_MIN_LOG_LEVEL": "0"}

    def preload(self) -> None:
        """Import TensorFlow and Keras.

        Raises:
            UsageError: Keras is configured for another backend.
        """
        import keras  # heavy: must stay out of the parent
        import tensorflow  # noqa: F401  # heavy: must stay out of the parent

        if keras.backend.backend() != self.name:
            raise UsageError(f"Keras is configured for {keras.backend.backend()}; set KERAS_BACKEND=tensorflow")

    def set_limit(self, device: Device | None, limit_bytes: int | None) -> None:
        """A logical device of that size on a GPU; a capped allocator on a CPU.

        On a CPU the allocator is asked to be BFC, which counts and can be capped whether or not oneDNN is in use
        (measured: see tests/trial/test_keras_facts.py); without a limit the CPU's allocator is left as it is, since
        another one is a little faster or slower.
        """
        if limit_bytes is None:
            return
        if device is None:
            os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "1"
            os.environ["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(max(1, limit_bytes // _MIB))
            os.environ["TF_MKL_ALLOC_MAX_BYTES"] = str(limit_bytes)
            return
        tf = _tensorflow()
        gpus = tf.config.list_physical_devices("GPU")
        if not gpus:
            raise UsageError(
                f"TensorFlow does not see the GPU that the driver reports ({device.name}): "
                f"install it with its CUDA libraries ({install_command('gpu')}), or set device: cpu"
            )
        limit = tf.config.LogicalDeviceConfiguration(memory_limit=max(1, limit_bytes // _MIB))
        tf.config.set_logical_device_configuration(gpus[0], [limit])

    def peak_bytes(self, device: Device | None) -> int | None:
        """The allocator's own peak; None for the CPU's plain allocator, which keeps no count."""
        try:
            memory = _tensorflow().config.experimental.get_memory_info(_device_name(device))
        except ValueError:
            return None
        return int(memory["peak"])

    def reset_peak(self, device: Device | None) -> None:
        """Set the allocator's peak back to what is in use."""
        _tensorflow().config.experimental.reset_memory_stats(_device_name(device))

    def estimator(
        self, model: Any, batch: Any, device: Device | None, limit_bytes: int | None
    ) -> Callable[[int], Footprint]:
        """By XLA's buffer assignment where the step is compiled by XLA, by a liveness walk over its graph otherwise."""
        from autofit.backends.tensorflow.memory.estimate import (
            StepFootprint,  # loads Keras and TensorFlow: must stay out of the parent
        )

        workers = _tensorflow().config.threading.get_inter_op_parallelism_threads() or os.cpu_count() or 1
        footprint = StepFootprint(
            model, batch, on_cpu=device is None, onednn=uses_onednn(), workers=workers, limit_bytes=limit_bytes
        )
        return footprint.estimate

    def is_oom(self, error: BaseException) -> bool:
        """`ResourceExhaustedError`, wherever in the chain of causes it stands."""
        exhausted = _tensorflow().errors.ResourceExhaustedError
        seen: set[int] = set()
        link: BaseException | None = error
        while link is not None and id(link) not in seen:
            if isinstance(link, exhausted):
                return True
            seen.add(id(link))
            link = link.__cause__ or link.__context__
        return False

    def settings(self) -> dict[str, str]:
        """See `Backend.settings`."""
        distributions = ("tensorflow", "keras", "numpy", *(["tf_keras"] if _legacy() else []))
        found = {name: importlib.metadata.version(name) for name in distributions}
        found |= {name: os.environ[name] for name in _SWITCHES if name in os.environ}
        found["python"] = f"{sys.version_info.major}.{sys.version_info.minor}"
        found["keras.json"] = json.dumps(_keras_settings(), sort_keys=True)
        return found

    def versions(self) -> dict[str, str]:
        """TensorFlow, Keras and NumPy, and whether TensorFlow uses oneDNN."""
        import keras  # heavy: must stay out of the parent
        import numpy as np  # only for its version

        found = {"tensorflow": str(_tensorflow().__version__), "keras": str(keras.__version__), "numpy": np.__version__}
        return {**found, "oneDNN": "on" if uses_onednn() else "off"}


def uses_onednn() -> bool:
    """Whether TensorFlow uses oneDNN's kernels on the CPU: by default it does where the processor has AVX-512 VNNI or more.

    `TF_ENABLE_ONEDNN_OPTS` switches it by hand, on x86. TensorFlow has no public function that tells.
    """
    from tensorflow.python.util import _pywrap_util_port  # heavy: must stay out of the parent

    return bool(_pywrap_util_port.IsMklEnabled())


def _keras_settings() -> dict[str, Any]:
    """The settings of Keras's file, where Keras looks for it, over Keras's defaults."""
    home = Path.home() if os.access(Path.home(), os.W_OK) else Path("/tmp")  # as Keras does
    file = Path(os.environ.get("KERAS_HOME", home / ".keras")).expanduser() / "keras.json"
    told = None
    with contextlib.suppress(OSError, ValueError):
        told = json.loads(file.read_text())
    return {**_KERAS_DEFAULTS, **(told if isinstance(told, dict) else {})}


def _legacy() -> bool:
    return os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")


def _device_name(device: Device | None) -> str:
    return "GPU:0" if device else "CPU:0"


def _tensorflow() -> Any:
    import tensorflow as tf  # heavy: must stay out of the parent

    return tf
