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
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from autofit import backends
from autofit.backends import protocol
from autofit.errors import UsageError
from autofit.records.machine import Device
from autofit.trial.worker.job import USER_ERROR_FILE, DevicePeaks, TrialContext, user_traceback
from autofit.workload import workload

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def play(folder: Path, spec_name: str, channel: int) -> int:
    """Do what the spec says; returns the exit status."""
    spec, backend = json.loads((folder / spec_name).read_text()), backends.current()
    device = Device(**spec["device"]) if spec["device"] else None
    job = TrialContext(folder, spec, device, channel, DevicePeaks(backend, device))
    (folder / USER_ERROR_FILE).unlink(missing_ok=True)
    try:
        backend.set_limit(job.device, job.spec["limits"]["device_bytes"])
        job.enter("loading your code")
        loaded = workload.load(folder)
        from autofit.trial.worker import roles  # loads Keras: only in a trial's process, after the limit is set

        roles.ROLES[job.spec["role"]](job, loaded)
    except BaseException as error:
        job.send(failure=_failure(job, backend, error))
        return 1
    return 0


def _failure(job: TrialContext, backend: protocol.Backend, error: BaseException) -> dict[str, Any]:
    if isinstance(error, UsageError):
        return {"kind": "usage", "reason": error.problem, "key": error.key}
    kept = job.folder / USER_ERROR_FILE
    if not kept.exists() and backend.is_oom(error):
        return {"kind": "device_oom", "reason": _first_line(error), "device_peak_bytes": job.peaks.highest()}
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
