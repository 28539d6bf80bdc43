"""`sweep` and `sweep_file`: a tune for each combination of values."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from autofit.api.config import load
from autofit.api.config import matrix as matrices
from autofit.api.requests import parse
from autofit.api.result import SweepResult
from autofit.api.session import progress_of, run_tune
from autofit.errors import UsageError
from autofit.machine import gpus, host
from autofit.records.events import Activity, Event, Notice, TrialEnded
from autofit.records.result import TuneRecord
from autofit.records.units import counted
from autofit.report import wording
from autofit.report.console.progress import CellsProgress, Progress
from autofit.tuning.cells import CellProgress, CellRequest, Executor, Tell, Tune, tune_cells
from autofit.tuning.executors.local import LocalExecutor, slots_of
from autofit.workload.reference import Reference

LOCAL, RAY = "local", "ray"
_SHARED = (
    "cells run at the same time, each with its own GPU and cores. They share memory bandwidth, storage and power, so rates "
    "may be slightly lower than with one cell at a time. Set jobs to 1 to tune one cell at a time"
)
_SAVING_SHARE = 0.05  # most time to spend on saving, as a share: writing thousands of cells takes seconds


def sweep(
    build_model: Callable[..., Any] | Reference,
    data: Any,
    matrix: Mapping[str, Any],
    *,
    executor: str | Callable[[Tune], Executor] = LOCAL,
    ship: str | os.PathLike[str] | None = None,
    host_labels: Mapping[str, str] | None = None,
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
        matrix: values to combine: a list for each dotted argument of `tune`, as in
            `{"model_kwargs.width": [8, 16], "device_memory": ["2GiB", "4GiB"]}`. Arguments joined by commas take the same
            value. `exclude` lists cells to remove, `include` cells to add.
        executor: where cells are tuned. "local" tunes them on this machine, "ray" on the Ray cluster that runs here or that
            RAY_ADDRESS names, and "ray://HOST:PORT" on the cluster at that address; or a function that returns your own
            executor (see CONTRIBUTING.md).
        ship: folder with your code, which Ray copies to each host; None if all hosts share the folder. For Ray only.
        host_labels: labels that the host of a cell must have in Ray, as in `{"ray.io/accelerator-type": "A100"}`; they may
            be an axis of the matrix.
        jobs: maximum number of cells to tune at the same time on this machine; None for one on each GPU. Two cells never
            share a device. For "local" only.
        fresh: whether to delete the stored trials of every cell first.
        wait: as for `tune`, before every cell.
        progress: whether to show progress, or a `Progress` to show it on.
        save: function that is called with the sweep so far each time a cell has ended; if saving takes long, it is called
            only once for several cells.
        arguments: other arguments of `tune`, the same for all cells.

    Returns:
        The sweep: a `Cell` for each combination, with its values and its result or error.

    Raises:
        UsageError: the matrix or an argument is wrong; nothing was trained.
        DeviceBusyError: the calling process itself holds memory of the GPU.
        DeviceLockedError: another autofit is measuring on the device, and `wait` is false.
        StorageError: the storage cannot be opened, or fails before a trial has run.
        TrialProcessError: no process for trials could be started.
        ExecutorError: no host of the cluster can tune, or the cluster does not respond.
        KeyboardInterrupt: Ctrl-C was pressed; all processes are stopped and finished cells are kept.

    Example:
        >>> matrix = {"model_kwargs.width": [8, 16]}
        >>> space = {"batch_size": [64], "steps_per_execution": [1]}
        >>> swept = autofit.sweep(build_model, arrays, matrix, space=space, progress=False)
        >>> [cell.values for cell in swept.cells]
        [{'model_kwargs.width': 8}, {'model_kwargs.width': 16}]
    """
    arguments = {"build_model": build_model, "data": data, load.HOST_LABELS: host_labels or {}, **arguments}
    try:
        cells = [(values, matrices.apply(values, arguments)) for values in matrices.unfold(matrix)]
    except matrices.MatrixError as error:
        raise UsageError(str(error), key=".".join(map(str, ("matrix", *error.keys)))) from None
    requests = [_request(*cell, fresh=fresh) for cell in cells]
    return _sweep("sweep", requests, executor, ship, jobs, wait=wait, progress=progress, save=save)


def sweep_file(
    path: str | os.PathLike[str],
    *,
    executor: str | Callable[[Tune], Executor] = LOCAL,
    ship: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    fresh: bool = False,
    wait: bool = True,
    progress: bool | Progress = True,
    save: Callable[[SweepResult], None] | None = None,
    **overrides: Any,
) -> SweepResult:
    """Run the sweep over the `matrix` of a YAML file.

    The arguments that are not listed here are those of `sweep`.

    Args:
        path: path of the file.
        overrides: arguments of `tune` that take precedence over the file.

    Returns:
        The sweep, as from `sweep`.

    Raises:
        ConfigError: the file is invalid; the message names file, line, column and key.

    Example:
        >>> len(autofit.sweep_file("sweep.yaml", progress=False).cells)
        2
    """
    cells = [(values, {**cell, **overrides}) for values, cell in load.load_sweep(path)]
    requests = [_request(*cell, fresh=fresh) for cell in cells]
    return _sweep(os.fspath(path), requests, executor, ship, jobs, wait=wait, progress=progress, save=save)


def _request(values: Mapping[str, Any], arguments: Mapping[str, Any], *, fresh: bool) -> CellRequest:
    """Make the request for a cell from its `values` by axis and its `arguments`: those of `tune`, and `host_labels`."""
    arguments = dict(arguments)
    labels = arguments.pop(load.HOST_LABELS, {})
    if not isinstance(labels, Mapping) or not all(isinstance(part, str) for pair in labels.items() for part in pair):
        raise UsageError(f"{labels!r} is not allowed; map labels to values, as in {{'region': 'eu'}}", key=load.HOST_LABELS)
    return CellRequest(values, *parse(arguments), fresh=fresh, host_labels=labels)


def _sweep(
    title: str,
    requests: Sequence[CellRequest],
    where: str | Callable[[Tune], Executor],
    ship: str | os.PathLike[str] | None,
    jobs: int | None,
    *,
    wait: bool,
    progress: bool | Progress,
    save: Callable[[SweepResult], None] | None,
) -> SweepResult:
    result: SweepResult | None = None
    unsaved: SweepResult | None = None
    next_save = 0.0
    shown = progress_of(progress)
    executor, is_parallel = _make_executor(where, shown, ship, jobs, wait=wait)
    try:
        # tunes that follow one after the other show their own progress
        with CellsProgress(shown, len(requests)) if is_parallel else contextlib.nullcontext() as side_by_side:
            for event in tune_cells(title, requests, executor):
                values = requests[event.index].values
                label = f"cell {event.index + 1} of {len(requests)}: {wording.cell_label(values)}"
                if isinstance(event, CellProgress):
                    if side_by_side is None:
                        shown.title(label)
                    else:
                        side_by_side.doing(event.index, label, event.where, event.doing)
                    continue
                result, outcome = SweepResult(**vars(event.record)), wording.cell_outcome(event.cell)
                if side_by_side is None:
                    shown.show(Notice(outcome))
                else:
                    side_by_side.ended(event.index, label, outcome)
                unsaved, began = result, time.monotonic()
                if save is not None and began >= next_save:
                    save(result)
                    unsaved, now = None, time.monotonic()
                    next_save = now + (now - began) / _SAVING_SHARE
    finally:
        if save is not None and unsaved is not None:
            save(unsaved)
    assert result is not None, "a matrix has at least one cell"
    return result


def _make_executor(
    executor: str | Callable[[Tune], Executor],
    shown: Progress,
    ship: str | os.PathLike[str] | None,
    jobs: int | None,
    *,
    wait: bool,
) -> tuple[Executor, bool]:
    """Return the executor that the arguments select, and whether it tunes several cells at once; `shown` shows notices."""
    is_ray = isinstance(executor, str) and (executor == RAY or executor.startswith(f"{RAY}://"))
    if isinstance(executor, str) and executor != LOCAL and not is_ray:
        raise UsageError(f"{executor!r} is not allowed; write {LOCAL}, {RAY} or {RAY}://HOST:PORT", key="executor")
    if ship is not None and not is_ray:
        raise UsageError("copies code to the hosts of a Ray cluster; remove ship, or set executor to ray", key="ship")
    if jobs is not None and executor != LOCAL:
        raise UsageError(
            f"limits the cells that run at the same time on this machine; remove jobs, or set executor to {LOCAL}",
            key="jobs",
        )
    tune = partial(_tune, None, wait=wait)
    if callable(executor):
        return executor(tune), True
    if is_ray:
        from autofit.tuning.executors.ray_executor import RayExecutor  # imports Ray

        return RayExecutor(tune, executor, ship, lambda text: shown.show(Notice(text))), True
    slots = slots_of(jobs, gpus.nvidia_devices(), host.usable_core_numbers(), gpus.nearby_cores)
    if not slots:
        return LocalExecutor(partial(_tune, shown, wait=wait)), False
    shown.show(Notice(_SHARED))
    return LocalExecutor(tune, slots), True


def _tune(shown: Progress | None, cell: CellRequest, tell: Tell, cancelled: threading.Event, *, wait: bool) -> TuneRecord:
    """Tune a cell; show its progress on `shown`, or, if `shown` is None, send the progress to `tell` as single lines."""
    progress = _OneLine(tell) if shown is None else shown
    return run_tune(cell.workload, cell.settings, progress, fresh=cell.fresh, wait=wait, cancelled=cancelled)


class _OneLine(Progress):
    """Progress of a tune in one line, for a display that shows several tunes."""

    def __init__(self, tell: Tell) -> None:
        super().__init__(quiet=True)
        self._tell, self._ended = tell, 0

    def show(self, event: Event) -> None:
        if isinstance(event, TrialEnded):
            self._ended += 1
        if isinstance(event, Activity):
            config = f" {event.config}" if event.config else ""
            self._tell(f"{counted(self._ended, 'trial')}, {event.doing}{config}")
