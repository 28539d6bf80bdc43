"""The executors that a sweep can name: this machine, a Ray cluster, or one of the user's own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial

from autofit.api.session import run_tune
from autofit.errors import UsageError
from autofit.machine import gpus, host
from autofit.records.events import Activity, Event, Notice, TrialEnded
from autofit.records.result import TuneRecord
from autofit.records.units import counted
from autofit.report.console.progress import Progress
from autofit.tuning.executors.executor import CellRequest, Executor, Tell, Tune
from autofit.tuning.executors.local import LocalExecutor, slots_of

LOCAL, RAY = "local", "ray"
_SHARED = (
    "cells run at the same time, each with its own GPU and cores. They share memory bandwidth, storage and power, so rates "
    "may be slightly lower than alone. Set jobs to 1 to tune one cell at a time"
)


def make_executor(
    executor: str | Callable[[Tune], Executor],
    *,
    ship: str | os.PathLike[str] | None,
    jobs: int | None,
    wait: bool,
    shown: Progress,
) -> tuple[Executor, bool]:
    """Make the executor that the arguments of a sweep name; `shown` displays notices, and the tunes of one cell at a time.

    Returns:
        The executor, and whether it tunes several cells at the same time.

    Raises:
        UsageError: there is no such executor, `ship` or `jobs` does not apply to it, or its cluster cannot be used.
    """
    is_ray = isinstance(executor, str) and (executor == RAY or executor.startswith(f"{RAY}://"))
    if isinstance(executor, str) and executor != LOCAL and not is_ray:
        raise UsageError(f"{executor!r} is not allowed; write {LOCAL}, {RAY} or {RAY}://HOST:PORT", key="executor")
    if ship is not None and not is_ray:
        raise UsageError("copies code to the hosts of a Ray cluster; leave it out, or tune on one", key="ship")
    if jobs is not None and executor != LOCAL:
        raise UsageError("limits the cells at the same time on this machine; leave it out on other executors", key="jobs")
    tune = partial(_tune_beside, wait=wait)
    if callable(executor):
        return executor(tune), True
    if is_ray:
        from autofit.tuning.executors.ray_executor import RayExecutor  # imports Ray

        return RayExecutor(tune, executor, ship, lambda text: shown.show(Notice(text))), True
    slots = slots_of(jobs, gpus.nvidia_devices(), host.usable_core_numbers(), gpus.nearby_cores)
    if not slots:
        return LocalExecutor(partial(_tune_shown, shown, wait=wait)), False
    shown.show(Notice(_SHARED))
    return LocalExecutor(tune, slots), True


def _tune_shown(shown: Progress, cell: CellRequest, tell: Tell, cancelled: threading.Event, *, wait: bool) -> TuneRecord:
    """Tune a cell that has the display to itself."""
    return run_tune(cell.workload, cell.settings, shown, fresh=cell.fresh, wait=wait, cancelled=cancelled)


def _tune_beside(cell: CellRequest, tell: Tell, cancelled: threading.Event, *, wait: bool) -> TuneRecord:
    """Tune a cell that shares the display with others: its progress is one line."""
    return run_tune(cell.workload, cell.settings, _OneLine(tell), fresh=cell.fresh, wait=wait, cancelled=cancelled)


class _OneLine(Progress):
    """Progress in one line, for a display that shows several tunes."""

    def __init__(self, tell: Tell) -> None:
        super().__init__(quiet=True)
        self._tell, self._ended = tell, 0

    def show(self, event: Event) -> None:
        if isinstance(event, TrialEnded):
            self._ended += 1
        if isinstance(event, Activity):
            config = f" {event.config}" if event.config else ""
            self._tell(f"{counted(self._ended, 'trial')}, {event.doing}{config}")
