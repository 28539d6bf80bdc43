"""A sweep, called from a program."""

from __future__ import annotations

import difflib
import inspect
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from autofit.api.config import load
from autofit.api.config import matrix as matrices
from autofit.api.result import Result, SweepResult
from autofit.api.tune import tune
from autofit.errors import UsageError
from autofit.machine import gpus, host
from autofit.records.events import Notice
from autofit.report import wording
from autofit.report.console.progress import Progress, Stoppable
from autofit.tuning import settings
from autofit.tuning import sweep as sweeping
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload

_UNCHECKED = {field.name for field in fields(Workload)} | {"fresh", "progress"}  # what a file says otherwise, or not


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
    known = set(inspect.signature(tune).parameters)
    try:
        cells = [
            (v, matrices.apply(v, {"build_model": build_model, "data": data, **arguments})) for v in matrices.unfold(matrix)
        ]
    except matrices.MatrixError as error:
        raise UsageError(f"{'.'.join(map(str, ('matrix', *error.keys)))}: {error}") from None
    for _, told in cells:
        for name in told:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise UsageError(f"{name}: there is no such argument of tune(){hint}")
    return _sweep("sweep", cells, jobs, fresh=fresh, progress=progress, save=save)


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
    cells = [(values, {**told, **overrides}) for values, told in load.load_sweep(os.fspath(path))]
    return _sweep(os.fspath(path), cells, jobs, fresh=fresh, progress=progress, save=save)


def _sweep(
    title: str,
    cells: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
    jobs: int | None,
    *,
    fresh: bool,
    progress: bool | Progress,
    save: Callable[[SweepResult], None] | None,
) -> SweepResult:
    for _, told in cells:
        settings.check(**{name: value for name, value in told.items() if name not in _UNCHECKED})
    lanes = sweeping.lanes_of(jobs, gpus.nvidia_devices(), host.usable_core_numbers())
    shown = progress if isinstance(progress, Progress) else Progress(quiet=not progress)
    swept: SweepResult | None = None

    def tune_cell(told: Mapping[str, Any], stop: threading.Event) -> Result:
        return tune(**{**told, "fresh": fresh, "progress": Stoppable(stop) if lanes else shown})

    for event in sweeping.sweep(title, cells, tune_cell, lanes):
        where = f"cell {event.index + 1} of {len(cells)}: {wording.cell_label(event.cell.values)}"
        if isinstance(event, sweeping.CellBegins):
            shown.title(where + (f", on {event.lane.device}" if event.lane else ""))
            continue
        swept = SweepResult.of(event.record)
        came = wording.cell_outcome(event.cell)
        shown.show(Notice(f"{where}: {came}" if lanes else came))
        if save is not None:
            save(swept)
    assert swept is not None, "a matrix has a cell"
    return swept
