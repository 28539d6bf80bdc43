"""Import TensorFlow in a separate process and report what it sees: the import takes seconds, and may crash or hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from pydantic import TypeAdapter, ValidationError

from autofit.records.units import signal_name

_TAIL_LINES = 6
_TRACEBACK_START = "Traceback (most recent call last):"


@dataclass(frozen=True)
class BackendReport:
    """What TensorFlow sees on this machine: the names of its GPUs, and its log on standard error."""

    tensorflow: str
    keras: str
    import_seconds: float
    built_with_cuda: bool
    gpus: tuple[str, ...]
    log: str = ""


@dataclass(frozen=True)
class ProbeFailure:
    """The probe gave no report: how its process ended, the signal that ended it, and the last lines that it wrote."""

    how: str
    signal: str | None
    last_lines: tuple[str, ...]


_REPORTS = TypeAdapter(BackendReport)


class Probe:
    """A process that imports TensorFlow and reports what it sees; it starts at once and ends with the context.

    Args:
        command: the command to run instead; for tests.
    """

    def __init__(self, command: Sequence[str] | None = None) -> None:
        root = str(Path(__file__).parents[3])
        path = f"import sys; sys.path[:] = [*filter(None, sys.path), {root!r}]"  # without the working directory
        program = f"{path}; from autofit.backends.tensorflow.probe import report; report()"
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
        """Return the report, waiting for so long at most."""
        try:
            output, log = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            _, log = self._process.communicate()
            return ProbeFailure(f"did not finish in {seconds:.0f} s", None, _last_lines(log))
        status = self._process.returncode
        if status:
            name = signal_name(-status) if status < 0 else None
            return ProbeFailure(f"died by {name}" if name else f"exited with status {status}", name, _last_lines(log))
        try:
            parsed = _REPORTS.validate_json(output.strip().rpartition(b"\n")[2])
        except ValidationError:
            return ProbeFailure("wrote no valid report", None, _last_lines(log or output))
        return replace(parsed, log=log.decode(errors="replace"))


def report() -> None:
    """Import TensorFlow and Keras, and write the report to standard output; what they print goes to standard error."""
    channel = os.dup(1)
    os.dup2(2, 1)
    started = time.perf_counter()
    import keras  # heavy: in a process of its own
    import tensorflow as tf  # heavy: in a process of its own

    seconds = time.perf_counter() - started
    fields = {
        "tensorflow": str(tf.__version__),
        "keras": str(keras.__version__),
        "import_seconds": seconds,
        "built_with_cuda": bool(tf.test.is_built_with_cuda()),
        "gpus": [
            tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name)
            for gpu in tf.config.list_physical_devices("GPU")
        ],
    }
    with os.fdopen(channel, "w") as pipe:
        pipe.write(json.dumps(fields))


def _last_lines(log: bytes) -> tuple[str, ...]:
    """Return the last lines; of a traceback, the line of the error and its message."""
    lines = [line.strip() for line in log.decode(errors="replace").splitlines() if line.strip()]
    if _TRACEBACK_START not in lines:
        return tuple(lines[-_TAIL_LINES:])
    places = [line for line in lines if line.startswith('File "')]
    return (*places[-1:], lines[-1])
