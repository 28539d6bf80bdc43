"""The context of one trial's process: its task, its pipe and the errors of the user's code."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from autofit.backends.exhaustion import chain, message_of
from autofit.backends.protocol import Backend
from autofit.records import tensorflow_remedy
from autofit.records.machine import Placement
from autofit.records.states import FailureKind, Phase
from autofit.records.trial import TrialSpec
from autofit.trial.wire import MESSAGES, Failure, Message, encode

USER_ERROR_FILE = "user-error.json"
_MEMORY_ERRORS = ("MemoryError", "_ArrayMemoryError")  # Python's and NumPy's
_PACKAGE = f"{Path(__file__).parents[2]}{os.sep}"
# TensorFlow writes into its message where an operation was traced: our frames, and the program of
# a trial's process
_TRACED_BY_US = re.compile(
    rf'^  File "(?:{re.escape(_PACKAGE)}.*|<string>", line 1, in <module>)\n\n?',
    re.MULTILINE,
)


@dataclass
class DevicePeaks:
    """The peak of device memory in each phase of a trial, in bytes, on the fullest device."""

    backend: Backend
    placement: Placement
    phase: Phase | None = None
    by_phase: dict[Phase, int] = field(default_factory=dict)

    def enter(self, phase: Phase) -> None:
        self._record()
        # reading the peak starts the backend, which the user's code may configure until the model
        # is built
        if self.phase is not None or phase is Phase.BUILDING:
            self.phase = phase

    def highest(self) -> int | None:
        """Return the highest peak of the phases that count, in bytes; None if none was counted."""
        self._record()
        counted = {phase for phase in self.by_phase if phase.counts}
        # In the first step, a GPU tries several algorithms for each convolution. Some use
        # workspaces of gigabytes, but only if there is room, so a first step does not count on a
        # GPU if later steps show what it needs.
        if self.placement.gpus and any(phase.trains for phase in counted):
            counted = {phase for phase in counted if not phase.is_first}
        if self.placement.gpus and Phase.VALIDATION in counted:
            counted.discard(Phase.FIRST_VALIDATION)
        # TensorFlow counts only large blocks on a CPU with oneDNN
        return max((self.by_phase[phase] for phase in counted), default=0) or None

    def _record(self) -> None:
        phase = self.phase
        if phase is None:
            return
        peak = self.backend.peak_bytes(self.placement)
        if peak is not None:
            self.by_phase[phase] = max(peak, self.by_phase.get(phase, 0))
            # what a first step tried is given back; later, steps would have to ask for their memory
            # again
            self.backend.reset_peak(self.placement, release=phase.is_first)


@dataclass(frozen=True)
class TrialContext:
    """A trial's process: the workload's folder, the task, and the pipe to the driver."""

    folder: Path
    spec: TrialSpec
    placement: Placement
    pipe: int
    peaks: DevicePeaks

    def enter(self, phase: Phase) -> None:
        self.peaks.enter(phase)
        self.send(Message(phase=phase))

    def send(self, message: Message) -> None:
        os.write(self.pipe, encode(message))

    def report_error(self, error: BaseException) -> None:
        """Save an exception of the user's `__getitem__`, raised in any thread or process, if it is
        the first.
        """
        line = encode(Message(failure=user_failure(error)))
        with (
            # another one was first, or the disk is full: then whoever gets this error tells it
            contextlib.suppress(OSError),
            (self.folder / USER_ERROR_FILE).open("xb", buffering=0) as file,
        ):
            file.write(line)


def saved_user_error(folder: Path) -> Failure | None:
    """Return the error of the user's `__getitem__` that the current trial saved, if any."""
    file = folder / USER_ERROR_FILE
    # it is incomplete if its process died while it wrote, or on a full disk
    line = file.read_bytes() if file.exists() else b""
    return MESSAGES.validate_json(line).failure if line.endswith(b"\n") else None


def user_failure(error: BaseException) -> Failure:
    """Return the failure of a trial whose user code raised an exception."""
    is_oom = type(error).__name__ in _MEMORY_ERRORS
    kind = FailureKind.HOST_OOM if is_oom else FailureKind.ERROR
    text = user_traceback(error)
    # grain reads absl's flags before it starts processes
    if "UnparsedFlagAccessError" in text:
        text = text.rstrip()
        text += " Parse absl's flags first: from absl import flags; flags.FLAGS([''])\n"
    reason = text
    for line in text.splitlines():
        # TensorFlow ends its errors with the operation, which tells users nothing
        if line.strip() and not line.lstrip().startswith("[["):
            reason = line
    if (
        isinstance(error, FileNotFoundError)
        and not Path(error.filename or "/").is_absolute()
    ):
        text += f"\nRelative paths start from the working folder, {Path.cwd()}\n"
    return Failure(kind, reason, text)


def first_line(error: BaseException) -> str:
    """Return the type of an error and its line about a failed allocation, or its first line."""
    lines = [line.strip() for line in message_of(error).splitlines() if line.strip()]
    failed = [line for line in lines if "OOM when allocating" in line]
    chosen = [*failed, *lines, ""]
    return f"{type(error).__name__}: {chosen[0]}"


def user_traceback(error: BaseException) -> str:
    """Format a traceback without the frames of autofit and of the import system.

    It ends in what to do if TensorFlow is missing.
    """
    report = traceback.TracebackException.from_exception(error)
    link: traceback.TracebackException | None = report
    while link is not None:
        frames = [
            f
            for f in link.stack
            if not f.filename.startswith((_PACKAGE, "<frozen importlib"))
        ]
        link.stack = traceback.StackSummary.from_list(frames)
        link = link.__cause__ or link.__context__
    text = _TRACED_BY_US.sub("", "".join(report.format()))
    if any(map(_lacks_tensorflow, chain(error))):
        text += f"TensorFlow is not installed: {tensorflow_remedy()}\n"
    return text.encode(errors="replace").decode()  # JSON takes no lone surrogates


def _lacks_tensorflow(error: BaseException) -> bool:
    # Python says so of an import, and Keras of its functions that make a `tf.data.Dataset`
    names_it = isinstance(error, ImportError) and "tensorflow" in str(error).lower()
    return names_it and importlib.util.find_spec("tensorflow") is None
