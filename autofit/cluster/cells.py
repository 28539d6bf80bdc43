"""A cell of a sweep: what is asked, and its tune."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from autofit.errors import (
    AutofitError,
    DeviceBusyError,
    StorageError,
    TrialProcessError,
    TuneError,
)
from autofit.records.result import Cell, TuneRecord
from autofit.tuning.settings import TuneSettings
from autofit.workload.workload import Workload

# of a host rather than of a cell: every other cell would fail on that host as well
HOST_ERRORS = (DeviceBusyError, StorageError, TrialProcessError)


@dataclass(frozen=True)
class CellRequest:
    """A cell to tune: its values by axis, and the workload and settings of its tune.

    A host of a cluster must have the labels `host_labels` to tune it.
    """

    values: Mapping[str, Any]
    workload: Workload
    settings: TuneSettings
    host_labels: Mapping[str, str] = field(default_factory=dict)


# tunes one cell
Tune = Callable[[CellRequest], TuneRecord]


def tune_cell(tune: Tune, request: CellRequest) -> Cell:
    """Tune a cell; store an error as its `problem`, and raise only one of the host."""
    try:
        record = tune(request)
    except HOST_ERRORS:
        raise
    except AutofitError as error:
        failed = error.tune if isinstance(error, TuneError) else None
        host = failed.machine.host if failed else ""
        return Cell(request.values, failed, str(error), host)
    return Cell(request.values, record, host=record.machine.host)
