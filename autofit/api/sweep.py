"""`sweep`: a tune for each combination of values."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from autofit.api.config import load
from autofit.api.result import SweepResult
from autofit.api.session import explain_calls, progress_of, run_tune
from autofit.cluster.cells import CellRequest, tune_cell
from autofit.cluster.tasks import tune_on_ray
from autofit.errors import UsageError
from autofit.machine.host import detect
from autofit.records.result import Cell, TuneRecord
from autofit.report.columns import cell_label, cell_outcome
from autofit.report.console.progress import Progress
from autofit.workload.reference import Reference

LOCAL = "local"
RAY = "ray"


@explain_calls
def sweep(
    build_model: Callable[..., Any] | Reference,
    data: Any,
    matrix: Mapping[str, Any],
    *,
    executor: str = LOCAL,
    ship: str | os.PathLike[str] | None = None,
    host_labels: Mapping[str, str] | None = None,
    only: str | None = None,
    progress: bool | Progress = True,
    save: Callable[[SweepResult], None] | None = None,
    **arguments: Any,
) -> SweepResult:
    """Tune every cell of a matrix: every combination of the values that it lists.

    A cell whose tune fails is recorded with its error, and the sweep goes on. Results are stored:
    an interrupted sweep resumes, and cells with a stored result return at once.

    Args:
        matrix: values to combine: a list for each dotted argument of `tune`, as in
            `{"model_kwargs.width": [8, 16], "device_memory": ["2GiB", "4GiB"]}`. Arguments joined
            by commas take the same value.
        executor: where cells are tuned. "local" tunes them on this machine, one after the other,
            "ray" on the Ray cluster that runs here or that RAY_ADDRESS names, and "ray://HOST:PORT"
            on the cluster at that address.
        ship: folder with your code, which Ray copies to each host; None if all hosts share the
            folder. For Ray only.
        host_labels: labels that the host of a cell must have in Ray, as in
            `{"ray.io/accelerator-type": "A100"}`; they may be an axis of the matrix.
        only: part of the cells to tune, for the array job of a scheduler: "3/12" is every 12th cell
            from the third on; None for all. With a storage that all parts share, a sweep of all
            cells on such a machine then returns at once.
        save: function that is called with the sweep so far each time a cell has ended.
        arguments: the arguments of `tune`, the same for all cells.

    Returns:
        The sweep: a `Cell` for each combination, with its values and its result or error.

    Raises:
        UsageError: the matrix or an argument is wrong; nothing was trained.
        DeviceBusyError, StorageError, TrialProcessError, KeyboardInterrupt: as for `tune`.

    Example:
        >>> matrix = {"model_kwargs.width": [8, 16]}
        >>> space = {"batch_size": [64], "steps_per_execution": [1]}
        >>> swept = autofit.sweep(build_model, arrays, matrix, space=space, progress=False)
        >>> [cell.values for cell in swept.cells]
        [{'model_kwargs.width': 8}, {'model_kwargs.width': 16}]
    """
    arguments = {
        "build_model": build_model,
        "data": data,
        load.HOST_LABELS: host_labels or {},
        **arguments,
    }
    cells = [(values, load.apply(values, arguments)) for values in load.unfold(matrix)]
    return sweep_cells(
        cells,
        title="sweep",
        executor=executor,
        ship=ship,
        only=only,
        progress=progress,
        save=save,
    )


def sweep_cells(
    given: load.Cells,
    *,
    title: str,
    executor: str,
    ship: str | os.PathLike[str] | None,
    only: str | None,
    progress: bool | Progress,
    save: Callable[[SweepResult], None] | None,
) -> SweepResult:
    """Tune cells, each given by its values and its arguments of `tune`.

    The other arguments are those of `sweep`.
    """
    requests: Sequence[CellRequest] = [load.cell_request(*cell) for cell in given]
    if only is not None:
        title = f"{title}, part {only}"
        requests = _part_of(requests, only)
    is_here = executor == LOCAL
    if not is_here and executor != RAY and not executor.startswith(f"{RAY}://"):
        raise UsageError(
            f"{executor!r} is not allowed; write {LOCAL}, {RAY} or {RAY}://HOST:PORT",
            key="executor",
        )
    has_labels = any(request.host_labels for request in requests)
    if is_here and (ship or has_labels):
        raise UsageError(
            "is for a Ray cluster, but this sweep runs here; remove it, or set executor to ray",
            key="ship" if ship else load.HOST_LABELS,
        )
    shown = progress_of(progress)
    started = time.monotonic()
    labels = [
        f"cell {number} of {len(requests)}: {cell_label(request.values)}"
        for number, request in enumerate(requests, 1)
    ]
    cells = [Cell(dict(request.values)) for request in requests]
    result = SweepResult(
        title=title,
        cells=tuple(cells),
        machine=detect(),
        seconds=0.0,
        started_at=time.time(),
    )
    if is_here:
        ending = _tune_here(requests, labels, shown)
    else:
        ending = tune_on_ray(
            requests, partial(_tune, False, ""), executor, ship, shown.show
        )
    with contextlib.closing(ending):
        for index, cell in ending:
            shown.show(f"{labels[index]}: {cell_outcome(cell)}")
            cells[index] = cell
            result = replace(
                result, cells=tuple(cells), seconds=time.monotonic() - started
            )
            if save is not None:
                save(result)
    return result


def _part_of(requests: Sequence[CellRequest], only: str) -> Sequence[CellRequest]:
    match = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", only)
    most = len(requests)
    first, count = map(int, match.groups()) if match else (1, 0)
    if first > min(count, most):
        raise UsageError(
            f"{only!r} is not allowed; write the number of a part and of all parts: "
            f"1/{most} to {most}/{most} for single cells",
            key="only",
        )
    return requests[first - 1 :: count]


def _tune_here(
    requests: Sequence[CellRequest], labels: Sequence[str], shown: Progress
) -> Generator[tuple[int, Cell]]:
    for index, request in enumerate(requests):
        yield index, tune_cell(partial(_tune, shown, labels[index]), request)


def _tune(progress: bool | Progress, title: str, cell: CellRequest) -> TuneRecord:
    shown = progress_of(progress)
    shown.title(title)
    return run_tune(cell.workload, cell.settings, shown)
