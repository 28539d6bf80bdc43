"""The Ray task that tunes a cell on a host, and the actor that collects the progress of all tasks."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cloudpickle
import psutil

from autofit.errors import ExecutorError, StorageError, UsageError
from autofit.machine import gpus
from autofit.machine.host import usable_core_numbers
from autofit.records.sweep import Cell
from autofit.records.units import counted
from autofit.storage import urls
from autofit.tuning.cells import HOST_ERRORS, CellRequest, Tell, Tune, tuned
from autofit.tuning.executors.local import in_slot, slots_of
from autofit.workload.reference import Reference

LOST_TWICE = "its host was lost twice; it is not tried a third time"
_MOST_LOSSES = 2
_SET_BY_RAY = ("OMP_NUM_THREADS", "SPT_NOENV", "PYTHONBREAKPOINT")  # OMP_NUM_THREADS is 1 in tasks with num_cpus=0
_STORAGE_WAITS_SECONDS = (5.0, 15.0, 40.0, 60.0)  # waiting times between attempts to reach a database server


@dataclass(frozen=True)
class PickledCell:
    """A cell that is sent to a host.

    `cell` is pickled without its data and validation, which are objects in Ray's store. `folder` is the working folder of
    the sweep. `ship` is the folder that Ray copies to the host, where the copy is the working folder of the task; None if
    the hosts share folders.
    """

    cell: bytes
    data: Any
    validation: Any
    folder: Path
    ship: Path | None

    def opened(self, fetch: Callable[[Any], Any]) -> CellRequest:
        """Unpickle the cell in the folder of its code; `fetch` reads an object from Ray's store."""
        if self.ship is None and self.folder.is_dir():
            os.chdir(self.folder)
        if os.getcwd() not in sys.path:  # noqa: PTH109  # sys.path holds strings
            sys.path.insert(0, os.getcwd())  # noqa: PTH109  # sys.path holds strings
        cell = cloudpickle.loads(self.cell)
        assert isinstance(cell, CellRequest)
        workload = replace(
            cell.workload,
            build_model=self._local(cell.workload.build_model),
            data=self._local(fetch(self.data)),
            validation=self._local(fetch(self.validation)),
            fit_kwargs={name: self._local(value) for name, value in cell.workload.fit_kwargs.items()},
        )
        return replace(cell, workload=workload)

    def _local(self, value: Any) -> Any:
        """Point a reference into the shipped folder to this host's copy of it; check that the file exists."""
        if not isinstance(value, Reference) or value.path is None:
            return value
        if self.ship is not None and value.path.is_relative_to(self.ship):
            value = Reference(f"{value.path.relative_to(self.ship)}:{value.name}", str(Path.cwd()))
        if not value.path.is_file():
            raise UsageError(
                f"there is no file {value.path} on this host: ship its folder (--ship FOLDER), or keep it in a folder that "
                "all hosts share"
            )
        return value


@dataclass(frozen=True)
class HostFault:
    """The result of a task on a host that cannot tune any cell."""

    node: str
    host: str
    problem: str


class ProgressActor:
    """Collects the progress of all tasks, and records which hosts started each cell and which hosts are excluded."""

    def __init__(self) -> None:
        self._lines: list[tuple[int | None, str, str]] = []
        self._began: defaultdict[int, list[str]] = defaultdict(list)  # the hosts that started a cell, by its index
        self._faults: dict[str, HostFault] = {}  # of the excluded hosts, by node

    def begin(self, index: int, node: str, host: str) -> tuple[str, ...] | HostFault:
        """Record that a host starts a cell; return the hosts lost with this cell, or why this host is excluded."""
        if node in self._faults:
            return self._faults[node]
        lost = tuple(self._began[index])
        self._began[index].append(host)
        if lost:
            self.tell(None, host, f"{lost[-1]} was lost; cell {index + 1} starts again on {host}")
        self.tell(index, host, "")
        return lost

    def tell(self, index: int | None, host: str, text: str) -> None:
        """Add a line that says what the tune of a cell is doing on a host; without an `index`, a notice to the user."""
        self._lines.append((index, host, text))

    def exclude(self, index: int, fault: HostFault) -> None:
        """Exclude a host that could not tune this cell: it starts no more cells."""
        self._faults[fault.node] = fault
        self._began[index].pop()

    def lines(self) -> list[tuple[int | None, str, str]]:
        """Return the lines since the last call."""
        lines, self._lines = self._lines, []
        return lines


def tune_on_host(progress: Any, tune: Tune, index: int, pickled: PickledCell) -> Cell | HostFault:
    """Tune a cell on this host, as the body of a Ray task; if the host is lost, Ray runs the task again on another one.

    `progress` is the handle of the `ProgressActor`.
    """
    import ray

    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # if Ray was started in the background; ray.cancel needs SIGINT
        signal.signal(signal.SIGINT, signal.default_int_handler)
    bundled = str(Path(ray.__file__).parent)  # Ray's own versions of packages such as psutil
    sys.path[:] = [entry for entry in sys.path if not entry.startswith(bundled)]
    context = ray.get_runtime_context()
    node = context.get_node_id()
    entry = next(entry for entry in ray.nodes() if entry["NodeID"] == node)
    host = platform.node() if entry["NodeName"] == entry["NodeManagerAddress"] else entry["NodeName"]  # Ray's own default
    lost: tuple[str, ...] | HostFault = ray.get(progress.begin.remote(index, node, host))
    if isinstance(lost, HostFault):
        return lost
    if len(lost) >= _MOST_LOSSES:  # needed because Ray retries without limit after a kill by its memory monitor
        raise ExecutorError(f"{LOST_TWICE} ({', '.join(lost)})")
    for problem in restore_process(context.runtime_env.get("env_vars") or {}, host):
        progress.tell.remote(None, host, problem)
    request = _on_own_gpus(pickled.opened(ray.get))
    request = replace(request, fresh=request.fresh and not lost)
    began = time.time()
    try:
        cell = _tune_patiently(tune, request, lambda text: progress.tell.remote(index, host, text))
    except HOST_ERRORS as error:
        fault = HostFault(node, host, str(error))
        ray.get(progress.exclude.remote(index, fault))
        return fault
    return replace(cell, host=host, note=_continuation(cell, began, lost[-1]) if lost else "")


def _continuation(cell: Cell, began: float, lost: str) -> str:
    """Say whether a tune that a lost host had started was resumed: then it has trials from before this task."""
    trials = cell.tune.searched if cell.tune is not None else ()
    earlier = sum((trial.measurement.started_at or began) < began for trial in trials)
    end = f"resumed with {counted(earlier, 'earlier trial')}" if earlier else "started over"
    return f"{lost} was lost while it tuned this cell; {end}"


def _tune_patiently(tune: Tune, request: CellRequest, tell: Tell) -> Cell:
    """Tune a cell; retry for about two minutes if the database server of the storage does not answer."""
    for seconds in _STORAGE_WAITS_SECONDS:
        try:
            return tuned(tune, request, tell, threading.Event())
        except StorageError:
            if urls.file_of(urls.url_of(request.settings.storage)) is not None:
                raise
        tell("waiting for the storage")
        time.sleep(seconds)
        request = replace(request, fresh=False)
    return tuned(tune, request, tell, threading.Event())


def restore_process(env_vars: Mapping[str, str], host: str) -> list[str]:
    """Undo changes by Ray to a task's process that would make measured rates wrong.

    Returns a message for each problem that cannot be undone. `env_vars` are the variables that the user asked Ray to set.
    """
    environment, niceness = {}, 0
    with contextlib.suppress(psutil.Error):
        raylet = psutil.Process(os.getppid())  # this process still has the environment and priority that Ray started with
        environment, niceness = raylet.environ(), raylet.nice()
    for name in _SET_BY_RAY:
        if name not in env_vars:
            os.environ.pop(name, None)
            if name in environment:
                os.environ[name] = environment[name]
    with contextlib.suppress(OSError):  # if lowering is not permitted, trials are as likely to be killed as this process
        Path("/proc/self/oom_score_adj").write_text(Path(f"/proc/{os.getppid()}/oom_score_adj").read_text())
    problems = []
    try:
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
    except OSError:
        problems.append(
            f"{host} runs trials at a low priority, so other processes slow them down. Start Ray on {host} with "
            "RAY_worker_niceness=0"
        )
    if environment.get("RAY_memory_monitor_refresh_ms") != "0":
        problems.append(
            f"Ray's memory monitor is enabled on {host}: when memory runs short, it kills the whole tune instead of the "
            f"trial that used too much. Start Ray on {host} with RAY_memory_monitor_refresh_ms=0"
        )
    return problems


def _on_own_gpus(request: CellRequest) -> CellRequest:
    """Restrict a cell to the GPUs that Ray assigned to it, and to these GPUs' share of the host's cores and memory."""
    if request.settings.device == "cpu":
        return request
    everything = [device for device in gpus.survey(hidden=True) if not isinstance(device, gpus.UnreadDevice)]
    slots = slots_of(None, everything, usable_core_numbers(), gpus.nearby_cores)
    assigned = {f"gpu:{gpu.index}" for gpu in gpus.nvidia_devices()[: request.settings.device_count]}
    own = [slot for slot in slots if slot.device in assigned]
    if not own:
        return request
    os.sched_setaffinity(0, [core for slot in own for core in slot.cores])
    device = own[0].device if request.settings.device_count == 1 else request.settings.device
    return replace(request, settings=in_slot(request.settings, device, len(slots) / len(own)))
