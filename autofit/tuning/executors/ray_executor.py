"""Tune cells on the hosts of a Ray cluster, as one Ray task for each cell.

    RayExecutor ── task ──> host 1: tune_on_host ─┐
        │       ── task ──> host 2: tune_on_host ─┼─> ProgressActor
        └───────────────── polls ─────────────────┘

A task holds its GPUs and a share of its host's resource `measuring`: a cell on the CPU holds all of it, as nothing may run
beside it; cells on different GPUs of a host may run at the same time. Ray queues the tasks, and retries once the task of
a lost host on another. A host that cannot tune at all is excluded, and its cell is submitted again.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Sequence
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
"""The custom resource that each host of the cluster has one of."""

_GPU_SHARE = 0.001  # of a host's `measuring`, held by a cell on a GPU
_POLL_SECONDS = 0.5  # between reads of the progress
_HOSTS_SECONDS = 5.0  # between looks at the hosts
_ANSWER_SECONDS = 10.0  # for a cluster to accept a connection
_ENDING_SECONDS = 60.0  # for cancelled tasks to end their processes
_NODE_LABEL = "ray.io/node-id"


@dataclass
class _Job:
    """A cell, its task, and the host that runs it."""

    index: int
    request: CellRequest
    pickled: PickledCell
    future: Future[Cell] = field(default_factory=Future)
    task: Any = None
    host: str = ""


class RayExecutor:
    """Tunes cells on the hosts of a Ray cluster; see `Executor`.

    Args:
        tune: tunes one cell; a function of a module.
        address: of the cluster: "ray" for the one that RAY_ADDRESS names or that runs on this machine, or ray://HOST:PORT.
        ship: folder with the user's code that Ray copies to each host; None if all hosts share this one.
        notify: takes notices to the user.
    """

    def __init__(self, tune: Tune, address: str, ship: str | os.PathLike[str] | None, notify: Tell) -> None:
        self._ray = _import_ray()
        self._tune, self._notify, self._notified = tune, notify, set[str]()
        self._ship = None if ship is None else Path(ship).resolve()
        self._is_own_connection = _connect(self._ray, address, self._ship)
        resources = self._ray.cluster_resources()
        if MEASURING not in resources:
            self._disconnect()
            raise UsageError(
                f"no host of the cluster may measure: start Ray on each with --resources='{{\"{MEASURING}\": 1}}'. A cell "
                "on a CPU takes all of it, so that no two share a host",
                key="executor",
            )
        self._has_gpus = "GPU" in resources
        self._stored: dict[int, Any] = {}
        self._faults: dict[str, str] = {}  # of the excluded hosts, by node
        self._jobs: list[_Job] = []
        self._open = 0  # cells without a result
        self._ended: queue.SimpleQueue[tuple[_Job, Future[Any]]] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._task = self._ray.remote(ray_task.tune_on_host)
        own_node = {_NODE_LABEL: self._ray.get_runtime_context().get_node_id()}  # the actor must not be lost with a host
        self._progress = self._ray.remote(ray_task.ProgressActor).options(num_cpus=0, label_selector=own_node).remote()

    def start(self, requests: Sequence[CellRequest], report: Report) -> Sequence[Future[Cell]]:
        self._jobs = [_Job(index, request, self._pickled(request)) for index, request in enumerate(requests)]
        self._open = len(self._jobs)
        for job in self._jobs:
            self._submit(job)
        self._thread = threading.Thread(target=self._follow, args=(report,), name="autofit-ray", daemon=True)
        self._thread.start()
        return [job.future for job in self._jobs]

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        tasks = [job.task for job in self._jobs if not job.future.done()]
        for task in tasks:
            self._ray.cancel(task)  # raises KeyboardInterrupt in the task, which ends its trial
        if tasks:
            self._ray.wait(tasks, num_returns=len(tasks), timeout=_ENDING_SECONDS, fetch_local=False)
        self._ray.kill(self._progress)
        self._disconnect()

    def _disconnect(self) -> None:
        if self._is_own_connection:
            self._ray.shutdown()

    def _pickled(self, request: CellRequest) -> PickledCell:
        """Pickle a cell for a host; data that several cells share is stored once."""
        if request.settings.device.startswith("gpu:"):
            raise UsageError("on a cluster Ray chooses the GPU: write gpu", key="device")
        if isinstance(request.settings.devices, list):
            raise UsageError("on a cluster Ray chooses the GPUs: write how many", key="devices")
        with explained_pickling_errors():
            pickled = cloudpickle.dumps(replace(request, workload=replace(request.workload, data=None, validation=None)))
            data, validation = self._store(request.workload.data), self._store(request.workload.validation)
        return PickledCell(pickled, data, validation, Path.cwd(), self._ship)

    def _store(self, part: Any) -> Any:
        if id(part) not in self._stored:
            self._stored[id(part)] = self._ray.put(part)
        return self._stored[id(part)]

    def _submit(self, job: _Job) -> None:
        """Submit the task of a cell, for a host that has its labels and is not excluded."""
        gpus = self._gpu_count(job.request)
        excluded = {_NODE_LABEL: f"!in({','.join(self._faults)})"} if self._faults else {}
        task = self._task.options(
            name=f"cell {job.index + 1}",
            num_cpus=0,  # the tune uses all cores of its share, whatever Ray counts
            num_gpus=gpus,
            resources={MEASURING: _GPU_SHARE if gpus else 1},
            label_selector={**job.request.host_labels, **excluded},
            max_retries=1,  # if the host is lost
        )
        job.task = task.remote(self._progress, self._tune, job.index, job.pickled)
        job.task.future().add_done_callback(lambda done: self._ended.put((job, done)))

    def _gpu_count(self, request: CellRequest) -> int:
        on_gpu = request.settings.device == "gpu" or (request.settings.device == "auto" and self._has_gpus)
        return request.settings.device_count if on_gpu else 0

    def _follow(self, report: Report) -> None:
        """Report the progress of the tasks and take their results, until every cell has one."""
        next_look = time.monotonic() + _HOSTS_SECONDS
        try:
            while self._open and not self._closing.is_set():
                ended = None
                with contextlib.suppress(queue.Empty):
                    ended = self._ended.get(timeout=_POLL_SECONDS)
                self._report_progress(report)  # first: a cell begins before it ends
                if ended is not None:
                    self._take(*ended)
                if time.monotonic() > next_look:
                    self._check_hosts()
                    next_look = time.monotonic() + _HOSTS_SECONDS
        except BaseException as error:
            if not isinstance(error, ExecutorError):
                kept = "What has been measured is kept; run it again"
                error = ExecutorError(f"the Ray cluster does not answer any more: {_first_line(error)}. {kept}")
            for job in self._jobs:
                if not job.future.done():
                    job.future.set_exception(error)

    def _report_progress(self, report: Report) -> None:
        latest: dict[int, str] = {}
        for line in self._ray.get(self._progress.lines.remote()):
            if line.index is None:
                self._notify_once(line.text)
            else:
                latest[line.index] = line.text
                self._jobs[line.index].host = line.host
        for index, text in latest.items():
            if not self._jobs[index].future.done():
                report(index, self._jobs[index].host, text)

    def _notify_once(self, text: str) -> None:
        if text not in self._notified:
            self._notified.add(text)
            self._notify(text)

    def _take(self, job: _Job, done: Future[Any]) -> None:
        """Take the result of a task, or submit its cell again if its host cannot tune."""
        error = done.exception()
        cell = Cell(job.request.values, None, self._problem(error, job.host), job.host) if error else done.result()
        if isinstance(cell, HostFault):
            self._exclude(cell)
            self._submit(job)
            return
        if cell.tune is not None:  # the imports in the host's source name files on the host
            cell = replace(cell, tune=replace(cell.tune, call_source=call_source_of(job.request.workload)))
        self._open -= 1
        job.future.set_result(cell)

    def _exclude(self, fault: HostFault) -> None:
        if fault.node not in self._faults:
            self._faults[fault.node] = f"{fault.host}: {fault.problem}"
            self._notify_once(f"{fault.host} gets no more cells: {fault.problem}")
            self._check_hosts()

    def _problem(self, error: BaseException, host: str) -> str:
        errors = self._ray.exceptions
        lost = (errors.WorkerCrashedError, errors.NodeDiedError, errors.LocalRayletDiedError, errors.ObjectLostError)
        if isinstance(error, (*lost, errors.OutOfMemoryError)):
            return f"{LOST_TWICE} (last {host or 'before it began'}): {_first_line(error)}"
        cause = getattr(error, "cause", None) or error
        if isinstance(cause, AutofitError):
            return str(cause)
        problem = f"the task failed on {host or 'a host'}: {_first_line(cause)}"
        if isinstance(cause, ModuleNotFoundError) or "No module named" in str(error):
            problem += (
                ". Install the same packages on each host; ship your own code with --ship FOLDER, or keep it in a folder "
                "that all hosts share"
            )
        return problem

    def _check_hosts(self) -> None:
        """Notify the user if cells wait for hosts that the cluster does not have; raise if all hosts are excluded."""
        nodes = [node for node in self._ray.nodes() if node["Alive"] and MEASURING in node["Resources"]]
        if not nodes:
            self._notify_once("no host is left that may measure; cells wait until one joins the cluster")
            return
        if all(node["NodeID"] in self._faults for node in nodes):
            raise ExecutorError("no host can tune:\n" + "\n".join(self._faults.values()))
        needed = max((self._gpu_count(job.request) for job in self._jobs if not job.future.done()), default=0)
        if needed > max(node["Resources"].get("GPU", 0) for node in nodes):
            self._notify_once(
                f"no host has {counted(needed, 'GPU')}: cells that need them wait until one joins the cluster"
            )


def _import_ray() -> Any:
    # Ray reads this at import. Without it, it prints the end of the log of each host that is lost.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    try:
        import ray
    except ImportError:
        raise UsageError(f"Ray is not installed: {install_command('ray')}", key="executor") from None
    return ray


def _connect(ray: Any, address: str, ship: Path | None) -> bool:
    """Connect to a cluster without side effects on this program; return False if it is already connected to one."""
    if ray.is_initialized():
        if ship is not None:
            problem = 'Ray is already connected; pass the folder to ray.init(runtime_env={"working_dir": …})'
            raise UsageError(problem, key="ship")
        return False
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
        # Ray installs a handler of its own, with which SIGTERM would end this program at once.
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
    return True


def _require_answer(address: str) -> None:
    """Check that something listens at the address of the cluster, since Ray itself tries for minutes."""
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
