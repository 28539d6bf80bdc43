"""The interface of an executor, which tunes the cells of a sweep, and the messages exchanged with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from autofit.errors import AutofitError, DeviceBusyError, DeviceLockedError, StorageError, TrialProcessError, TuneError
from autofit.records.result import TuneRecord
from autofit.records.sweep import Cell
from autofit.tuning.settings import TuneSettings
from autofit.workload.workload import Workload

HOST_ERRORS = (DeviceBusyError, DeviceLockedError, StorageError, TrialProcessError)
"""Errors of a host rather than of a cell: every other cell would fail there as well."""


@dataclass(frozen=True)
class CellRequest:
    """A cell to tune: its values by axis, and the workload and settings of its tune.

    With `fresh`, its stored trials are deleted first. `host_labels` are the labels that its host must have in a cluster.
    """

    values: Mapping[str, Any]
    workload: Workload
    settings: TuneSettings
    fresh: bool = False
    host_labels: Mapping[str, str] = field(default_factory=dict)


Tell = Callable[[str], None]
"""Takes a line that says what a tune is doing."""

Tune = Callable[[CellRequest, Tell, threading.Event], TuneRecord]
"""Tunes one cell; stops when the event is set."""

Report = Callable[[int, str, str], None]
"""Takes the index of a cell, the host or device that tunes it, and what its tune is doing; returns when that is shown."""


class Executor(Protocol):
    """Tunes the cells of a sweep."""

    def start(self, requests: Sequence[CellRequest], report: Report) -> Sequence[Future[Cell]]:
        """Begin to tune cells, as many at a time as can run without disturbing each other.

        Args:
            requests: the cells, in the order in which they should begin.
            report: to be called, from any thread, when the tune of a cell begins and whenever it does something else.

        Returns:
            A future for each cell, in their order. One that raises ends the sweep.
        """

    def close(self) -> None:
        """End the tunes that still run and all their processes, and wait until they have ended."""


def tuned(tune: Tune, request: CellRequest, tell: Tell, cancelled: threading.Event) -> Cell:
    """Tune a cell; an error of the cell itself becomes its problem, one of `HOST_ERRORS` is raised."""
    try:
        record = tune(request, tell, cancelled)
    except AutofitError as error:
        if isinstance(error, HOST_ERRORS):
            raise
        failed = error.tune if isinstance(error, TuneError) else None
        return Cell(request.values, failed, str(error), failed.machine.host if failed else "")
    return Cell(request.values, record, host=record.machine.host)
