"""`sweep` and `sweep_file`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autofit.api.config import load
from autofit.api.config import matrix as matrices
from autofit.api.result import SweepResult
from autofit.api.session import parse, run
from autofit.errors import UsageError
from autofit.machine import gpus, host
from autofit.records.events import Notice
from autofit.records.result import TuneRecord
from autofit.report import wording
from autofit.report.console.progress import Progress
from autofit.tuning import cached
from autofit.tuning import sweep as sweeping
from autofit.tuning.settings import TuneSettings
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload


def sweep(
    build_model: Callable[..., Any] | Reference,
    data: Any,
    matrix: Mapping[str, Any],
    *,
    jobs: int | None = None,
    fresh: bool = False,
    progress: bool | Progress = True,
    save: Callable[[SweepResult], None] | None = None,
    **arguments: Any,
) -> SweepResult:
    """Tune every cell of a matrix; one that fails or does not fit is a row like any other.

    Cells that were answered before are answered at once, so that a sweep that was killed goes on where it was.

    Args:
        build_model: as for `tune`.
        data: as for `tune`.
        matrix: what is varied: for each dotted argument of `tune` a list of values, as
            `{"model_kwargs.width": [8, 16], "device_memory": ["2GiB", "4GiB"]}`; arguments joined by commas take the same
            value. `exclude` lists cells to leave out, `include` further ones.
        jobs: most cells at the same time; None for as many as there are GPUs. Two cells never share a device.
        fresh: ask every cell anew.
        progress: whether to show progress, or a `Progress` to show it on.
        save: called with the sweep as it stands whenever a cell has ended.
        arguments: the other arguments of `tune`.

    Returns:
        A cell for each combination, with its whole result.

    Raises:
        UsageError: the matrix or the arguments are wrong; nothing was trained.
        DeviceBusyError, StorageError, TrialProcessError: nothing can be tuned.
    """
    arguments = {"build_model": build_model, "data": data, **arguments}
    try:
        cells = [(values, matrices.apply(values, arguments)) for values in matrices.unfold(matrix)]
    except matrices.MatrixError as error:
        raise UsageError(str(error), key=".".join(map(str, ("matrix", *error.keys)))) from None
    requests = [sweeping.CellRequest(values, *parse(cell)) for values, cell in cells]
    return _sweep("sweep", requests, jobs, fresh=fresh, progress=progress, save=save)


def sweep_file(
    path: str | os.PathLike[str],
    *,
    jobs: int | None = None,
    fresh: bool = False,
    progress: bool | Progress = True,
    save: Callable[[SweepResult], None] | None = None,
    **overrides: Any,
) -> SweepResult:
    """Tune every cell of the `matrix` in a YAML file; `overrides` are arguments of `tune` that take precedence.

    Args:
        path: the file.
        jobs: as for `sweep`.
        fresh: as for `sweep`.
        progress: as for `sweep`.
        save: as for `sweep`.
        overrides: arguments of `tune`.

    Raises:
        ConfigError: the file says something that is not allowed; names file, line, column and key.
        AutofitError: as `sweep`.
    """
    cells = load.load_sweep(os.fspath(path))
    requests = [sweeping.CellRequest(values, *parse({**cell, **overrides})) for values, cell in cells]
    return _sweep(os.fspath(path), requests, jobs, fresh=fresh, progress=progress, save=save)


def _sweep(
    title: str,
    cells: Sequence[sweeping.CellRequest],
    jobs: int | None,
    *,
    fresh: bool,
    progress: bool | Progress,
    save: Callable[[SweepResult], None] | None,
) -> SweepResult:
    lanes = sweeping.lanes_of(jobs, gpus.nvidia_devices(), host.usable_core_numbers())
    shown = progress if isinstance(progress, Progress) else Progress(quiet=not progress)
    result: SweepResult | None = None

    def tune_cell(workload: Workload, settings: TuneSettings, cancelled: threading.Event) -> TuneRecord:
        own = False if lanes else shown  # side by side, only the ends of cells are shown
        return run(cached.tune, workload, settings, own, fresh=fresh, cancelled=cancelled)

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
    assert result is not None, "a matrix has a cell"
    return result
