"""The child: load the user's code, play the role the spec names, and report on a pipe of its own.

Runs in a process of its own, a fork of the warm server or a plain subprocess. The lines it writes are JSON objects with one
key each: `phase`, `description`, `measurement` or `failure`.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from autofit import backends, workload
from autofit.errors import UsageError
from autofit.records import Device, FitConfig

_PACKAGE = str(Path(__file__).parents[1])
_USER_ERROR_FILE = "user-error.json"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class Job:
    """What one trial's process works on: the folder with the workload, the spec, and the pipe to write to."""

    folder: Path
    spec: Mapping[str, Any]
    channel: int

    @property
    def device(self) -> Device | None:
        """The accelerator, or None for the CPU."""
        return Device(**self.spec["device"]) if self.spec["device"] else None

    @property
    def config(self) -> FitConfig:
        """The setting of the knobs to try."""
        return FitConfig(**self.spec["config"])

    def send(self, **line: Any) -> None:
        """Write one line to the pipe."""
        os.write(self.channel, json.dumps(line).encode() + b"\n")

    def enter(self, phase: str) -> None:
        """Say what is being done from now on."""
        self.send(phase=phase)

    def report_error(self, error: BaseException) -> None:
        """Keep the first exception of the user's `__getitem__`, from whichever thread or process it comes."""
        try:
            with open(self.folder / _USER_ERROR_FILE, "x") as file:
                json.dump({"type": type(error).__name__, "traceback": user_traceback(error)}, file)
        except FileExistsError:
            pass


def play(folder: Path, spec_name: str, channel: int) -> int:
    """Do what the spec says; returns the exit status."""
    job = Job(folder, json.loads((folder / spec_name).read_text()), channel)
    (folder / _USER_ERROR_FILE).unlink(missing_ok=True)
    backend = backends.current()
    try:
        backend.set_limit(job.device, job.spec["limits"]["device_bytes"])
        job.enter("loading your code")
        loaded = workload.load(folder)
        from autofit.trial import roles  # loads Keras: only in a trial's process, after the limit is set

        roles.ROLES[job.spec["role"]](job, loaded)
    except BaseException as error:
        job.send(failure=_failure(job, backend, error))
        return 1
    return 0


def user_traceback(error: BaseException) -> str:
    """A traceback that begins where the user's code does: frames of autofit and of the import system are left out."""
    report = traceback.TracebackException.from_exception(error)
    link: traceback.TracebackException | None = report
    while link is not None:
        frames = [f for f in link.stack if not f.filename.startswith((_PACKAGE, "<frozen importlib"))]
        link.stack = traceback.StackSummary.from_list(frames)
        link = link.__cause__ or link.__context__
    return "".join(report.format())


def _failure(job: Job, backend: backends.Backend, error: BaseException) -> dict[str, Any]:
    if isinstance(error, UsageError):
        return {"kind": "usage", "reason": str(error)}
    kept = job.folder / _USER_ERROR_FILE
    if not kept.exists() and backend.is_oom(error):
        return {"kind": "device_oom", "reason": _first_line(error), "device_peak_bytes": backend.peak_bytes(job.device)}
    # What the user's __getitem__ raised comes first: TensorFlow turns a MemoryError in it into a ResourceExhaustedError
    told = {"type": type(error).__name__, "traceback": user_traceback(error)}
    raised = json.loads(kept.read_text()) if kept.exists() else told
    kind = "host_oom" if raised["type"] in ("MemoryError", "_ArrayMemoryError") else "error"
    return {"kind": kind, "reason": raised["traceback"].strip().splitlines()[-1], "traceback": raised["traceback"]}


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next((line for line in lines if "OOM when allocating" in line), lines[0] if lines else "")
    return f"{type(error).__name__}: {told}"


def die_with_parent() -> None:
    """Ask the kernel (Linux) to kill this process when its parent dies; elsewhere the server's own watch must do."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def run_plain(arguments: Sequence[str]) -> NoReturn:
    """The whole life of a plain subprocess; `arguments` are folder, spec name and the pipe's descriptor."""
    die_with_parent()
    leave(play(Path(arguments[0]), arguments[1], int(arguments[2])))


def leave(status: int) -> NoReturn:
    """End this process at once: what a broken-off `fit` left running is not waited for."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
