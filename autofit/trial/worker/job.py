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

from autofit.backends.protocol import Backend
from autofit.records.machine import Device
from autofit.records.trial import INPUT_ALONE, FitConfig

BUILDING = "building the model"
USER_ERROR_FILE = "user-error.json"
_PACKAGE = str(Path(__file__).parents[2])


class DevicePeaks:
    """The device's peak in each phase of a trial, bytes.

    Asking for the peak starts the backend, which the user's code may still want to configure: so it is not asked before
    the model is built.
    """

    def __init__(self, backend: Backend, device: Device | None) -> None:
        self._backend, self._device = backend, device
        self._phase: str | None = None
        self.by_phase: dict[str, int] = {}

    def enter(self, phase: str) -> None:
        """Note the peak of the phase that ends, and begin anew."""
        if self._phase is not None:
            self._note()
        if self._phase is not None or phase == BUILDING:
            self._phase = phase

    def highest(self) -> int | None:
        """The highest peak so far, the present phase's included, but for the phase in which nothing is trained."""
        if self._phase is not None:
            self._note()
        return max((size for phase, size in self.by_phase.items() if phase != INPUT_ALONE), default=None)

    def _note(self) -> None:
        peak = self._backend.peak_bytes(self._device)
        if peak is not None and self._phase is not None:
            self.by_phase[self._phase] = max(peak, self.by_phase.get(self._phase, 0))
            self._backend.reset_peak(self._device)


@dataclass(frozen=True)
class TrialContext:
    """What one trial's process works on: the folder with the workload, the spec, and the pipe to write to."""

    folder: Path
    spec: Mapping[str, Any]
    device: Device | None
    channel: int
    peaks: DevicePeaks

    @property
    def config(self) -> FitConfig:
        """The setting of the knobs to try."""
        return FitConfig(**self.spec["config"])

    def send(self, **line: Any) -> None:
        """Write one line to the pipe."""
        os.write(self.channel, json.dumps(line).encode() + b"\n")

    def enter(self, phase: str) -> None:
        """Say what is being done from now on."""
        self.peaks.enter(phase)
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
