"""What one trial's process works on, and how it reports."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autofit.records import Device, FitConfig

USER_ERROR_FILE = "user-error.json"
_PACKAGE = str(Path(__file__).parents[1])


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
        told = json.dumps({"type": type(error).__name__, "traceback": user_traceback(error)})
        written = self.folder / f"{USER_ERROR_FILE}.{os.getpid()}.{threading.get_ident()}"
        written.write_text(told)
        with contextlib.suppress(FileExistsError):
            os.link(written, self.folder / USER_ERROR_FILE)


def user_traceback(error: BaseException) -> str:
    """A traceback that begins where the user's code does: frames of autofit and of the import system are left out."""
    report = traceback.TracebackException.from_exception(error)
    link: traceback.TracebackException | None = report
    while link is not None:
        frames = [f for f in link.stack if not f.filename.startswith((_PACKAGE, "<frozen importlib"))]
        link.stack = traceback.StackSummary.from_list(frames)
        link = link.__cause__ or link.__context__
    return "".join(report.format())
