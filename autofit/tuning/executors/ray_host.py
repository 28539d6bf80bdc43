"""The part of a sweep on Ray that runs on its hosts: the task of a cell, and the actor to which tasks say what they do."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import psutil

from autofit.errors import StorageError, UsageError
from autofit.machine import gpus
from autofit.machine.host import usable_core_numbers
from autofit.records.units import counted
from autofit.storage import urls
from autofit.tuning.executors.executor import HOST_ERRORS, CellRequest, CellResult, Tell, Tune, tuned
from autofit.tuning.executors.local import Slot, in_slot, slots_of
from autofit.workload.reference import Reference

_SET_BY_RAY = ("OMP_NUM_THREADS", "SPT_NOENV", "PYTHONBREAKPOINT")  # the first to 1 where a task counts no CPUs
_NICENESS = "RAY_worker_niceness"  # 15 unless it is set
_MONITOR = "RAY_memory_monitor_refresh_ms"
_STORAGE_WAITS_SECONDS = (5.0, 15.0, 40.0, 60.0)  # while a database server is away


@dataclass(frozen=True)
class PickledCell:
    """A cell on its way to a host.

    `cell` is pickled, without its data; data and validation are references of Ray's to objects, or names of functions.
    `folder` is the working folder of the sweep. `ship` is the folder that Ray copies to the host, None where hosts share
    folders.
    """

    cell: bytes
    data: Any
    validation: Any
    folder: Path
    ship: Path | None

    def opened(self) -> CellRequest:
        """The cell, in the folder of its code.

        Raises:
            UsageError: a file that it names is not on this host.
        """
        root = Path.cwd()
        if self.ship is None and self.folder.is_dir():
            os.chdir(self.folder)
        if os.getcwd() not in sys.path:  # noqa: PTH109  # sys.path holds strings
            sys.path.insert(0, os.getcwd())  # noqa: PTH109  # sys.path holds strings
        cell = cloudpickle.loads(self.cell)
        assert isinstance(cell, CellRequest)
        workload = replace(cell.workload, data=_fetched(self.data), validation=_fetched(self.validation))
        if self.ship is not None:
            move = partial(_moved, ship=self.ship, root=root)
            fit_kwargs = {name: move(value) for name, value in workload.fit_kwargs.items()}
            parts = {name: move(getattr(workload, name)) for name in ("build_model", "data", "validation")}
            workload = replace(workload, **parts, fit_kwargs=fit_kwargs)
        for part in (workload.build_model, workload.data, workload.validation, *workload.fit_kwargs.values()):
            if isinstance(part, Reference) and part.path is not None and not part.path.is_file():
                raise UsageError(f"there is no file {part.path} on this host: ship its folder (--ship FOLDER), or share it")
        return replace(cell, workload=workload)


@dataclass(frozen=True)
class HostFault:
    """A host that cannot tune, whatever the cell."""

    node: str
    host: str
    problem: str


@dataclass(frozen=True)
class ProgressLine:
    """What a task says: what the tune of a cell is doing on a host; without an index, what the user must know."""

    index: int | None
    host: str
    text: str


class ProgressActor:
    """An actor on which the tasks of a sweep say what they do; the sweep looks at it."""

    def __init__(self) -> None:
        self._lines: list[ProgressLine] = []
        self._excluded: set[str] = set()

    def begin(self, index: int, node: str, host: str) -> bool:
        """The tune of a cell begins; returns whether that host may tune."""
        if node in self._excluded:
            return False
        self._lines.append(ProgressLine(index, host, ""))
        return True

    def tell(self, line: ProgressLine) -> None:
        """Take a line."""
        self._lines.append(line)

    def exclude(self, node: str) -> None:
        """Let that host tune no more cells."""
        self._excluded.add(node)

    def lines(self) -> list[ProgressLine]:
        """What has been said since the last time."""
        lines, self._lines = self._lines, []
        return lines


def tune_on_host(progress: Any, tune: Tune, index: int, pickled: PickledCell, goes_on: bool) -> CellResult | HostFault:
    """Tune a cell on this host: the body of a Ray task.

    Args:
        progress: the `ProgressActor`.
        tune: tunes one cell.
        index: of the cell.
        pickled: the cell.
        goes_on: whether another host has begun with it, so that its trials are not deleted.
    """
    import ray  # nothing else but `ray_cluster` needs it

    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # of a Ray started in the background: no task could be cancelled
        signal.signal(signal.SIGINT, signal.default_int_handler)
    bundled = str(Path(ray.__file__).parent)  # packages of Ray's own, in versions of its own
    sys.path[:] = [entry for entry in sys.path if not entry.startswith(bundled)]
    node = ray.get_runtime_context().get_node_id()
    host = _host_name(ray.nodes(), node)
    if not ray.get(progress.begin.remote(index, node, host)):
        return HostFault(node, host, "")
    for text in restore_process(ray.get_runtime_context().runtime_env, host):
        progress.tell.remote(ProgressLine(None, host, text))
    try:
        cell = _shared_out(pickled.opened())
    except UsageError as error:
        return CellResult(None, str(error), host)
    cell = replace(cell, fresh=cell.fresh and not goes_on)

    def tell(text: str) -> None:
        progress.tell.remote(ProgressLine(index, host, text))

    began = time.time()
    try:
        result = _patiently(tune, cell, tell)
    except HOST_ERRORS as error:
        return HostFault(node, host, str(error))
    return replace(result, host=host, note=_continuation(result, began) if goes_on else "")


def _continuation(result: CellResult, began: float) -> str:
    """Whether a tune that another host had begun went on with its trials, by when these ran."""
    trials = result.tune.searched if result.tune is not None else ()
    kept = sum((trial.measurement.started_at or began) < began for trial in trials)
    return f"it went on with {counted(kept, 'trial')} of before" if kept else "it began anew"


def _patiently(tune: Tune, cell: CellRequest, tell: Tell) -> CellResult:
    """Tune, and try again for some minutes where a database server is away."""
    for seconds in (*_STORAGE_WAITS_SECONDS, None):
        try:
            return tuned(tune, cell, tell, threading.Event())
        except StorageError:
            if seconds is None or urls.file_of(urls.url_of(cell.settings.storage)) is not None:
                raise
        tell("waiting for the storage")
        time.sleep(seconds)
        cell = replace(cell, fresh=False)
    raise AssertionError("the last round returns or raises")


def restore_process(runtime_env: Mapping[str, Any], host: str) -> list[str]:
    """Undo what Ray changes in a process that would falsify a rate; returns what cannot be undone, for people."""
    try:
        node = psutil.Process(os.getppid())  # the node's own process, as its user started it
        environment, niceness = node.environ(), node.nice()
    except psutil.Error:
        environment, niceness = {}, 0
    asked = runtime_env.get("env_vars") or {}
    for name in _SET_BY_RAY:
        if name in asked:
            continue
        if name in environment:
            os.environ[name] = environment[name]
        else:
            os.environ.pop(name, None)
    problems = []
    if not _restored_priority(niceness):
        problems.append(
            f"{host} runs trials at a low priority: whatever else runs there lowers their rates. Start Ray there with "
            f"{_NICENESS}=0"
        )
    if environment.get(_MONITOR) != "0":
        problems.append(
            f"Ray's memory monitor is on at {host}: near the end of the host's RAM it ends the whole tune instead of the "
            f"trial that took too much. Start Ray there with {_MONITOR}=0"
        )
    return problems


def _restored_priority(niceness: int) -> bool:
    """Give this process the priority of its node's own, and the kernel's OOM killer no reason to prefer it."""
    with contextlib.suppress(OSError):  # without the right to, trials are no more likely to be ended than this process
        Path("/proc/self/oom_score_adj").write_text(Path(f"/proc/{os.getppid()}/oom_score_adj").read_text())
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
    return os.getpriority(os.PRIO_PROCESS, 0) <= niceness


def _shared_out(cell: CellRequest) -> CellRequest:
    """A cell on this host: on the GPUs that Ray has given it, with their share of cores and memory where there are more."""
    if cell.settings.device == "cpu":
        return cell
    seen = gpus.nvidia_devices()
    everything = [device for device in gpus.survey(hidden=True) if not isinstance(device, gpus.UnreadDevice)]
    slots = slots_of(None, everything, usable_core_numbers(), gpus.nearby_cores)
    given = {f"gpu:{gpu.index}" for gpu in seen[: cell.settings.device_count]}
    own = [slot for slot in slots if slot.device in given]
    if not own:
        return cell
    cores = tuple(sorted(core for slot in own for core in slot.cores))
    os.sched_setaffinity(0, cores)
    device = own[0].device if cell.settings.device_count == 1 else cell.settings.device
    return replace(cell, settings=in_slot(cell.settings, Slot(device, cores), len(slots) / len(own)))


def _host_name(nodes: list[dict[str, Any]], node: str) -> str:
    """The name of a host, for people: that which Ray was given for it, or else its own."""
    found = next((entry for entry in nodes if entry["NodeID"] == node), {})
    name = str(found.get("NodeName", ""))
    return platform.node() if not name or name == found.get("NodeManagerAddress") else name


def _fetched(part: Any) -> Any:
    """Data out of a pickled cell."""
    if part is None or isinstance(part, Reference):
        return part
    import ray  # nothing else but `ray_cluster` needs it

    return ray.get(part)


def _moved(value: Any, *, ship: Path, root: Path) -> Any:
    """A reference to a file of the shipped folder, where that folder is on this host; anything else as it is."""
    if not isinstance(value, Reference) or value.path is None or not value.path.is_relative_to(ship):
        return value
    return replace(value, text=f"{value.path.relative_to(ship)}:{value.name}", folder=str(root))
