"""What an executor must do in which the cells of a sweep are tuned, and what crosses to it and back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from autofit.errors import (
    AutofitError,
    DeviceBusyError,
    DeviceLockedError,
    StorageError,
    TrialProcessError,
    TuneError,
)
from autofit.records.result import FailedTune, TuneRecord
from autofit.tuning.settings import TuneSettings
from autofit.workload.workload import Workload

HOST_ERRORS = (DeviceBusyError, DeviceLockedError, StorageError, TrialProcessError)
"""Errors of a host and not of a cell: the next cell would fail there, too."""


@dataclass(frozen=True)
class CellRequest:
    """One cell: its values by axis, and the workload and settings of its tune.

    With `fresh`, its stored trials are deleted first. `host_labels` are what the host must be labelled with, in a cluster.
    """

    values: Mapping[str, Any]
    workload: Workload
    settings: TuneSettings
    fresh: bool = False
    host_labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CellResult:
    """How the tune of a cell ended: its record, if there is one, its problem, its host, and what its reader must know."""

    tune: TuneRecord | FailedTune | None
    problem: str = ""
    host: str = ""
    note: str = ""


Tell = Callable[[str], None]
"""Takes what a tune is doing, a line each."""

Tune = Callable[[CellRequest, Tell, threading.Event], TuneRecord]
"""Tunes one cell; stops when the event is set."""

Report = Callable[[int, str, str], None]
"""Takes the index of a cell, where it is tuned, and what its tune is doing; returns when that is shown."""


class Executor(Protocol):
    """Where the cells of a sweep are tuned."""

    def start(self, cells: Sequence[CellRequest], report: Report) -> Sequence[Future[CellResult]]:
        """Begin to tune the cells, as many at a time as there is room for without one disturbing another.

        Args:
            cells: the cells, in the order in which they should begin.
            report: called, from any thread, when the tune of a cell begins, and as it goes on.

        Returns:
            A future for each cell, in their order. One that raises ends the sweep.
        """

    def close(self) -> None:
        """End the tunes that still run, with all their processes, and wait for that."""


def tuned(tune: Tune, cell: CellRequest, tell: Tell, cancelled: threading.Event) -> CellResult:
    """Tune a cell; an error of its own is its result.

    Raises:
        AutofitError: one of `HOST_ERRORS`.
    """
    try:
        record = tune(cell, tell, cancelled)
    except HOST_ERRORS:
        raise
    except AutofitError as error:
        failed = error.tune if isinstance(error, TuneError) else None
        return CellResult(failed, str(error), failed.machine.host if failed else "")
    return CellResult(record, host=record.machine.host)
