"""`sweep` and `sweep_file`: a tune for each combination of values."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autofit.api.config import load
from autofit.api.config import matrix as matrices
from autofit.api.requests import parse
from autofit.api.result import SweepResult
from autofit.api.session import progress_of, run_tune
from autofit.errors import UsageError
from autofit.machine import gpus, host
from autofit.records.events import Notice
from autofit.records.result import TuneRecord
from autofit.report import wording
from autofit.report.console.progress import Progress
from autofit.tuning import sweep as sweeping
from autofit.tuning.settings import TuneSettings
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload

_SHARED = (
    "cells run at the same time, each with a GPU and cores of its own; memory bandwidth, storage and power are shared, and "
    "rates may be a little lower than alone. jobs: 1 measures one after the other"
)


def sweep(
    build_model: Callable[..., Any] | Reference,
    data: Any,
    matrix: Mapping[str, Any],
    *,
    jobs: int | None = None,
    fresh: bool = False,
    wait: bool = True,
    progress: bool | Progress = True,
    save: Callable[[SweepResult], None] | None = None,
    **arguments: Any,
) -> SweepResult:
    """Tune every cell of a matrix: every combination of the values that it lists.

    A cell whose tune fails is recorded with its error, and the sweep goes on. Results are stored: an interrupted sweep
    resumes, and cells with a stored result return at once.

    Args:
        build_model: as for `tune`.
        data: as for `tune`.
        matrix: values to combine: for each dotted argument of `tune` a list, as in
            `{"model_kwargs.width": [8, 16], "device_memory": ["2GiB", "4GiB"]}`; arguments joined by commas take the same
            value. `exclude` lists cells to leave out, `include` cells to add.
        jobs: most cells to tune at the same time; None for one on each GPU. Two cells never share a device.
        fresh: whether to delete the stored trials of every cell first.
        wait: as for `tune`, before every cell.
        progress: whether to show progress, or a `Progress` to show it on.
        save: function called with the sweep so far whenever a cell has ended.
        arguments: other arguments of `tune`, the same for all cells.

    Returns:
        The sweep: a `Cell` for each combination, with its values and its result or error.

    Raises:
        UsageError: the matrix or an argument is wrong; nothing was trained.
        DeviceBusyError: the calling process itself holds the GPU.
        DeviceLockedError: another autofit measures on the device, and `wait` is off.
        StorageError: the trials cannot be stored.
        TrialProcessError: no process for trials could be started.
        KeyboardInterrupt: Ctrl-C was pressed; all processes are stopped and finished cells are kept.
    """
    arguments = {"build_model": build_model, "data": data, **arguments}
    try:
        cells = [(values, matrices.apply(values, arguments)) for values in matrices.unfold(matrix)]
    except matrices.MatrixError as error:
        raise UsageError(str(error), key=".".join(map(str, ("matrix", *error.keys)))) from None
    requests = [sweeping.CellRequest(values, *parse(cell)) for values, cell in cells]
    return _sweep("sweep", requests, jobs, fresh=fresh, wait=wait, progress=progress, save=save)


def sweep_file(
    path: str | os.PathLike[str],
    *,
    jobs: int | None = None,
    fresh: bool = False,
    wait: bool = True,
    progress: bool | Progress = True,
    save: Callable[[SweepResult], None] | None = None,
    **overrides: Any,
) -> SweepResult:
    """Run the sweep over the `matrix` of a YAML file; see `sweep`.

    Args:
        path: path of the file.
        jobs: as for `sweep`.
        fresh: as for `sweep`.
        wait: as for `sweep`.
        progress: as for `sweep`.
        save: as for `sweep`.
        overrides: arguments of `tune` that take precedence over the file.

    Returns:
        The sweep, as from `sweep`.

    Raises:
        ConfigError: the file is invalid; the message names file, line, column and key.
        AutofitError: as for `sweep`.
    """
    cells = load.load_sweep(path)
    requests = [sweeping.CellRequest(values, *parse({**cell, **overrides})) for values, cell in cells]
    return _sweep(os.fspath(path), requests, jobs, fresh=fresh, wait=wait, progress=progress, save=save)


def _sweep(
    title: str,
    cells: Sequence[sweeping.CellRequest],
    jobs: int | None,
    *,
    fresh: bool,
    wait: bool,
    progress: bool | Progress,
    save: Callable[[SweepResult], None] | None,
) -> SweepResult:
    lanes = sweeping.lanes_of(jobs, gpus.nvidia_devices(), host.usable_core_numbers(), gpus.nearby_cores)
    shown = progress_of(progress)
    if lanes:
        shown.show(Notice(_SHARED))
    result: SweepResult | None = None

    def tune_cell(workload: Workload, settings: TuneSettings, cancelled: threading.Event) -> TuneRecord:
        cell_progress = False if lanes else shown  # cells tuned at the same time would mix their lines
        return run_tune(workload, settings, cell_progress, fresh=fresh, wait=wait, cancelled=cancelled)

    for event in sweeping.sweep(title, cells, tune_cell, lanes):
        label = f"cell {event.index + 1} of {len(cells)}: {wording.cell_label(event.cell.values)}"
        if isinstance(event, sweeping.CellBegins):
            shown.title(label + (f", on {event.lane.device}" if event.lane else ""))
            continue
        result = SweepResult.of(event.record)
        outcome = wording.cell_outcome(event.cell)
        shown.show(Notice(f"{label}: {outcome}" if lanes else outcome))
        if save is not None:
            save(result)
    assert result is not None, "a matrix has at least one cell"
    return result
