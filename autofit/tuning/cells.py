"""The cells of a sweep: their requests, and what becomes of an error in one of them.

Each tune stores its result. When a sweep that was killed runs again, its finished cells return their results at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from autofit.errors import AutofitError, DeviceBusyError, StorageError, TrialProcessError, TuneError
from autofit.records.result import Cell, TuneRecord
from autofit.tuning.settings import TuneSettings
from autofit.workload.workload import Workload

HOST_ERRORS = (DeviceBusyError, StorageError, TrialProcessError)
"""Errors of a host rather than of a cell: every other cell would fail on that host as well."""


@dataclass(frozen=True)
class CellRequest:
    """A cell to tune: its values by axis, and the workload and settings of its tune."""

    values: Mapping[str, Any]
    workload: Workload
    settings: TuneSettings
    host_labels: Mapping[str, str] = field(default_factory=dict)  # that a host of a cluster must have to tune the cell


Tune = Callable[[CellRequest], TuneRecord]  # tunes one cell


def tuned(tune: Tune, request: CellRequest) -> Cell:
    """Tune a cell. An error is stored as the `problem` of the cell; only `HOST_ERRORS` are raised."""
    try:
        record = tune(request)
    except AutofitError as error:
        if isinstance(error, HOST_ERRORS):
            raise
        failed = error.tune if isinstance(error, TuneError) else None
        return Cell(request.values, failed, str(error), failed.machine.host if failed else "")
    return Cell(request.values, record, host=record.machine.host)
