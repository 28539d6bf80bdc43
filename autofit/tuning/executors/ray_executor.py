"""Tune cells on the hosts of a Ray cluster, with one Ray task for each cell.

    RayExecutor ── task ──> host 1: tune_on_host ─┐
        │       ── task ──> host 2: tune_on_host ─┼─> ProgressActor
        └───────────────── polls ─────────────────┘

Each host has the resource `measuring`. A cell on the CPU holds all of it, because nothing else may run on its host; a cell
on a GPU holds a small share of it, so cells on different GPUs of a host may run at the same time. Ray queues the tasks. If
a host is lost, Ray runs its task once more on another host. A host that cannot tune at all is excluded, and its cell is
submitted again.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import cloudpickle

from autofit.errors import AutofitError, ExecutorError, UsageError
from autofit.records.distribution import install_command
from autofit.records.sweep import Cell
from autofit.records.units import counted
from autofit.tuning.cells import CellRequest, Report, Tell, Tune
from autofit.tuning.executors import ray_task
from autofit.tuning.executors.ray_task import LOST_TWICE, HostFault, PickledCell
from autofit.workload.call_source import call_source_of
from autofit.workload.workload import explained_pickling_errors

MEASURING = "measuring"
"""The name of the custom Ray resource; each host has 1 of it."""

_GPU_SHARE = 0.001  # share of a host's `measuring` that a cell on a GPU holds
_POLL_SECONDS = 0.5  # time between reads of the progress
_HOSTS_SECONDS = 5.0  # time between checks of the hosts
_ANSWER_SECONDS = 10.0  # time that a cluster has to accept a connection, or to answer a call when the executor closes
_ENDING_SECONDS = 60.0  # time that cancelled tasks have to end their processes
_NODE_LABEL = "ray.io/node-id"


@dataclass
class _Job:
    """A cell, its Ray task, and the host that runs the task."""

    index: int
    request: CellRequest
    pickled: PickledCell
    future: Future[Cell] = field(default_factory=Future)
    task: Any = None
    host: str = ""


class RayExecutor:
    """Tunes cells on the hosts of a Ray cluster; see `Executor`.

    Hosts import `tune`, so it must be defined at the top level of a module. `address` is ray://HOST:PORT, or "ray" for the
    cluster that RAY_ADDRESS names or that runs on this machine. Ray copies the folder `ship` with the user's code to each
    host; if it is None, all hosts share the working folder.
    """

    def __init__(self, tune: Tune, address: str, ship: str | os.PathLike[str] | None, notify: Tell) -> None:
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # else Ray prints the end of the log of each lost host
        try:
            import ray  # reads the variable
        except ImportError:
            raise UsageError(f"Ray is not installed: {install_command('ray')}", key="executor") from None
        self._ray = ray
        self._tune, self._notify, self._notified = tune, notify, set[str]()
        self._ship = None if ship is None else Path(ship).resolve()
        self._disconnect = _connect(ray, address, self._ship)
        resources = ray.cluster_resources()
        if MEASURING not in resources:
            self._disconnect()
            raise UsageError(
                f"no host of the cluster has the resource {MEASURING!r}: start Ray on each host with "
                f"--resources='{{\"{MEASURING}\": 1}}'. autofit then runs one cell at a time on each host",
                key="executor",
            )
        self._has_gpus = "GPU" in resources
        self._stored: dict[int, Any] = {}
        self._faults: dict[str, str] = {}  # the faults of the excluded hosts, by node
        self._jobs: list[_Job] = []
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._task = ray.remote(ray_task.tune_on_host)
        own_node = {_NODE_LABEL: ray.get_runtime_context().get_node_id()}  # so that no lost host ends the actor
        self._progress = ray.remote(ray_task.ProgressActor).options(num_cpus=0, label_selector=own_node).remote()

    def start(self, requests: Sequence[CellRequest], report: Report) -> Sequence[Future[Cell]]:
        self._jobs = [_Job(index, request, self._pickled(request)) for index, request in enumerate(requests)]
        for job in self._jobs:
            self._submit(job)
        self._thread = threading.Thread(target=self._follow, args=(report,), name="autofit-ray", daemon=True)
        self._thread.start()
        return [job.future for job in self._jobs]

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join(_ANSWER_SECONDS)
            if self._thread.is_alive():  # in a call to a cluster that does not answer: further calls would also block
                return
        tasks = [job.task for job in self._open_jobs()]
        for task in tasks:
            self._ray.cancel(task)  # raises KeyboardInterrupt in the task; the task then ends its trial
        if tasks:
            self._ray.wait(tasks, num_returns=len(tasks), timeout=_ENDING_SECONDS, fetch_local=False)
        self._ray.kill(self._progress)
        self._disconnect()

    def _pickled(self, request: CellRequest) -> PickledCell:
        """Pickle a cell for a host; data that several cells share is stored once."""
        if request.settings.device.startswith("gpu:"):
            raise UsageError("on a cluster, Ray chooses the GPU: write device: gpu", key="device")
        if isinstance(request.settings.devices, list):
            raise UsageError("on a cluster, Ray chooses the GPUs; write how many, as in devices: 2", key="devices")
        with explained_pickling_errors():
            pickled = cloudpickle.dumps(replace(request, workload=replace(request.workload, data=None, validation=None)))
            data, validation = self._store(request.workload.data), self._store(request.workload.validation)
        return PickledCell(pickled, data, validation, Path.cwd(), self._ship)

    def _store(self, part: Any) -> Any:
        if id(part) not in self._stored:
            self._stored[id(part)] = self._ray.put(part)
        return self._stored[id(part)]

    def _submit(self, job: _Job) -> None:
        """Submit the task of a cell; it may run on hosts that have the cell's labels and are not excluded."""
        gpus = self._gpu_count(job.request)
        excluded = {_NODE_LABEL: f"!in({','.join(self._faults)})"} if self._faults else {}
        job.task = self._task.options(
            name=f"cell {job.index + 1}",
            num_cpus=0,  # the tune uses all cores of its slot, so Ray need not count them
            num_gpus=gpus,
            resources={MEASURING: _GPU_SHARE if gpus else 1},
            label_selector={**job.request.host_labels, **excluded},
            max_retries=1,  # if the host is lost
        ).remote(self._progress, self._tune, job.index, job.pickled)

    def _gpu_count(self, request: CellRequest) -> int:
        on_gpu = request.settings.device == "gpu" or (request.settings.device == "auto" and self._has_gpus)
        return request.settings.device_count if on_gpu else 0

    def _follow(self, report: Report) -> None:
        """Report the progress of the tasks and take their results, until every cell has one."""
        next_look = time.monotonic() + _HOSTS_SECONDS
        try:
            while (waiting := {job.task: job for job in self._open_jobs()}) and not self._closing.is_set():
                ended, _ = self._ray.wait(list(waiting), timeout=_POLL_SECONDS, fetch_local=False)
                self._report_progress(report)  # before the results, so that the start of a cell is reported before its end
                for task in ended:
                    self._take(waiting[task])
                if time.monotonic() > next_look:
                    self._check_hosts()
                    next_look = time.monotonic() + _HOSTS_SECONDS
        except BaseException as error:
            if not isinstance(error, ExecutorError):
                kept = "All trials so far are stored; run the sweep again to continue it"
                error = ExecutorError(f"the Ray cluster no longer answers: {_first_line(error)}. {kept}")
            for job in self._open_jobs():
                job.future.set_exception(error)

    def _open_jobs(self) -> list[_Job]:
        return [job for job in self._jobs if not job.future.done()]

    def _report_progress(self, report: Report) -> None:
        for index, host, text in self._ray.get(self._progress.lines.remote()):
            if index is None:
                self._notify_once(text)
            elif not self._jobs[index].future.done():
                self._jobs[index].host = host
                report(index, host, text)

    def _notify_once(self, text: str) -> None:
        if text not in self._notified:
            self._notified.add(text)
            self._notify(text)

    def _take(self, job: _Job) -> None:
        """Take the result of a task, or submit its cell again if its host cannot tune."""
        try:
            cell = self._ray.get(job.task)
        except Exception as error:
            cell = Cell(job.request.values, None, self._problem(error, job.host), job.host)
        if isinstance(cell, HostFault):
            if cell.node not in self._faults:
                self._faults[cell.node] = f"{cell.host}: {cell.problem}"
                self._notify_once(f"{cell.host} gets no more cells: {cell.problem}")
                self._check_hosts()
            self._submit(job)
            return
        if cell.tune is not None:  # a call source made on the host imports from files on the host
            cell = replace(cell, tune=replace(cell.tune, call_source=call_source_of(job.request.workload)))
        job.future.set_result(cell)

    def _problem(self, error: BaseException, host: str) -> str:
        errors = self._ray.exceptions
        lost = (errors.WorkerCrashedError, errors.NodeDiedError, errors.LocalRayletDiedError, errors.ObjectLostError)
        if isinstance(error, (*lost, errors.OutOfMemoryError)):
            return f"{LOST_TWICE} (last {host or 'before it began'}): {_first_line(error)}"
        cause = getattr(error, "cause", None) or error
        if isinstance(cause, AutofitError):
            return str(cause)
        problem = f"the task failed on {host or 'a host'}: {_first_line(cause)}"
        if "No module named" in str(error):
            problem += (
                ". Install the same packages on each host; ship your own code with --ship FOLDER, or keep it in a folder "
                "that all hosts share"
            )
        return problem

    def _check_hosts(self) -> None:
        """Notify the user if cells wait for hosts that the cluster does not have; raise if all hosts are excluded."""
        nodes = [node for node in self._ray.nodes() if node["Alive"] and MEASURING in node["Resources"]]
        if not nodes:
            self._notify_once(
                f"no host with the resource {MEASURING!r} is left; cells wait until such a host joins the cluster"
            )
            return
        if all(node["NodeID"] in self._faults for node in nodes):
            raise ExecutorError("no host of the cluster can tune:\n" + "\n".join(self._faults.values()))
        needed = max((self._gpu_count(job.request) for job in self._open_jobs()), default=0)
        if needed > max(node["Resources"].get("GPU", 0) for node in nodes):
            self._notify_once(
                f"no host has {counted(needed, 'GPU')}: cells that need them wait until such a host joins the cluster"
            )


def _connect(ray: Any, address: str, ship: Path | None) -> Callable[[], None]:
    """Connect to a cluster without side effects on this program, unless Ray is connected; return how to disconnect."""
    if ray.is_initialized():
        if ship is not None:
            problem = 'Ray is already connected; pass the folder to your ray.init(runtime_env={"working_dir": …}) instead'
            raise UsageError(problem, key="ship")
        return lambda: None
    if ship is not None and not ship.is_dir():
        raise UsageError(f"there is no folder {ship}", key="ship")
    runtime_env = {} if ship is None else {"working_dir": str(ship)}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        _require_answer(address)
        ray.init(
            "auto" if address == "ray" else address, runtime_env=runtime_env, log_to_driver=False, logging_level="ERROR"
        )
    except (OSError, ValueError, RuntimeError) as error:
        hint = "start one with ray start --head, or name one as ray://HOST:10001" if address == "ray" else "is it running?"
        raise UsageError(f"no Ray cluster answers at {address!r} ({_first_line(error)}); {hint}", key="executor") from None
    finally:
        # Ray installs its own handler for SIGTERM, which would end this program at once; restore the previous one.
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
    return ray.shutdown  # type: ignore[no-any-return]  # Ray has no types


def _require_answer(address: str) -> None:
    """Check that a server listens at the address of the cluster; without one, Ray itself would try for minutes."""
    if address == "ray":
        address = os.environ.get("RAY_ADDRESS", "")
    parts = urlsplit(address if "://" in address else f"//{address}")
    if parts.hostname and parts.port:
        try:
            socket.create_connection((parts.hostname, parts.port), timeout=_ANSWER_SECONDS).close()
        except OSError as error:
            raise ConnectionError(f"{parts.hostname}:{parts.port}: {error.strerror or error}") from None


def _first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
