"""What TensorFlow sees on this machine, told by a process of its own: importing it takes seconds, and may crash or hang."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from pydantic import TypeAdapter, ValidationError

_TAIL_LINES = 6
_TRACEBACK_START = "Traceback (most recent call last):"


@dataclass(frozen=True)
class VisibleGpu:
    """A GPU that TensorFlow sees; what it does not tell is None."""

    name: str
    compute_capability: tuple[int, int] | None
    memory_growth: bool | None


@dataclass(frozen=True)
class BackendReport:
    """What TensorFlow sees; `kernels` are the architectures that it was built for, as in "sm_80" and "compute_90".

    `log` is what was written meanwhile.
    """

    tensorflow: str
    keras: str
    import_seconds: float
    built_with_cuda: bool
    kernels: tuple[str, ...]
    gpus: tuple[VisibleGpu, ...]
    log: str = ""


@dataclass(frozen=True)
class ProbeFailure:
    """TensorFlow could not tell: how its process ended, the signal that ended it, and the last lines that it wrote."""

    how: str
    signal: str | None
    last_lines: tuple[str, ...]


_SIGHTS = TypeAdapter(BackendReport)


class Probe:
    """A process that imports TensorFlow and tells what it sees; started at once, ended with the context.

    Args:
        command: what to run; for tests.
    """

    def __init__(self, command: Sequence[str] | None = None) -> None:
        root = str(Path(__file__).parents[3])
        program = f"import sys; sys.path.append({root!r}); from autofit.backends.tensorflow.probe import tell; tell()"
        self._process = subprocess.Popen(
            command or [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0", "KERAS_BACKEND": "tensorflow"},
        )

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def result(self, seconds: float) -> BackendReport | ProbeFailure:
        """What it tells, waited for so long at the most."""
        try:
            told, written = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            _, written = self._process.communicate()
            return ProbeFailure(f"it did not come to its end in {seconds:.0f} s", None, _last_lines(written))
        status = self._process.returncode
        if status:
            name = _signal_name(-status) if status < 0 else None
            return ProbeFailure(f"died by {name}" if name else f"exited with status {status}", name, _last_lines(written))
        try:
            seen = _SIGHTS.validate_json(told.strip().rpartition(b"\n")[2])
        except ValidationError:
            return ProbeFailure("told nothing that can be read", None, _last_lines(written or told))
        return replace(seen, log=written.decode(errors="replace"))


def tell() -> None:
    """Import TensorFlow and Keras, and write what they see to the standard output, which what they print does not reach."""
    channel = os.dup(1)
    os.dup2(2, 1)
    started = time.perf_counter()
    import keras  # heavy: in a process of its own
    import tensorflow as tf  # heavy: in a process of its own

    seconds = time.perf_counter() - started
    seen = {
        "tensorflow": str(tf.__version__),
        "keras": str(keras.__version__),
        "import_seconds": seconds,
        "built_with_cuda": bool(tf.test.is_built_with_cuda()),
        "kernels": list(tf.sysconfig.get_build_info().get("cuda_compute_capabilities", [])),
        "gpus": [_told(tf, gpu) for gpu in tf.config.list_physical_devices("GPU")],
    }
    with os.fdopen(channel, "w") as pipe:
        pipe.write(json.dumps(seen))


def _told(tf: Any, gpu: Any) -> dict[str, Any]:
    details = tf.config.experimental.get_device_details(gpu)
    return {
        "name": details.get("device_name", gpu.name),
        "compute_capability": details.get("compute_capability"),
        "memory_growth": tf.config.experimental.get_memory_growth(gpu),
    }


def _last_lines(written: bytes) -> tuple[str, ...]:
    """The last lines; of a traceback, the place and the error."""
    lines = [line.strip() for line in written.decode(errors="replace").splitlines() if line.strip()]
    if _TRACEBACK_START not in lines:
        return tuple(lines[-_TAIL_LINES:])
    places = [line for line in lines if line.startswith('File "')]
    return (*places[-1:], lines[-1])


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
