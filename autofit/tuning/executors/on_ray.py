"""Tune cells on the hosts of a Ray cluster: a task for each, which runs the same tune there as on one host.

A task holds its GPU and a share of its host's resource `measuring`: a cell on the CPU holds all of it, since nothing may
run beside it; cells on different GPUs of a host may run at the same time. Ray queues and schedules the tasks.
What it does to a process that would falsify a measurement is undone there (`ray_host`).

Faults: a cell whose host is lost is tuned again, where another host is; at the second loss that is its result. A host that
cannot tune at all gets no more cells, and its cell goes to another one.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle

from autofit.errors import ExecutorError, UsageError
from autofit.records.units import counted
from autofit.tuning.executors import ray_cluster, ray_endings, ray_host
from autofit.tuning.executors.executor import CellRequest, CellResult, Report, Tell, Tune
from autofit.tuning.executors.ray_cluster import first_line
from autofit.tuning.executors.ray_host import HostFault, PickledCell
from autofit.workload.call_source import call_source_of
from autofit.workload.reference import Reference
from autofit.workload.workload import explained_pickling_errors

MEASURING = "measuring"
"""The custom resource that each host of the cluster has one of."""

_GPU_SHARE = 0.001  # of a host's `measuring`, held by a cell on a GPU
_MOST_LOSSES = 2  # of its host, for a cell
_POLL_SECONDS = 0.5  # between two looks at what the tunes are doing
_HOSTS_SECONDS = 5.0  # between two looks at the hosts
_ENDING_SECONDS = 60.0  # for the tunes to end their processes
_NODE_LABEL = "ray.io/node-id"


@dataclass
class _Job:
    """A cell: the task that tunes it, the host on which it does, and those that were lost with it."""

    index: int
    cell: CellRequest
    pickled: Any
    future: Future[CellResult] = field(default_factory=Future)
    task: Any = None
    host: str = ""
    lost: list[str] = field(default_factory=list)


class RayExecutor:
    """The hosts of a Ray cluster; see `Executor`.

    Args:
        tune: tunes one cell; a function of a module.
        address: of the cluster: "ray" for the one that RAY_ADDRESS names or that runs on this machine, or ray://HOST:PORT.
        ship: folder with the user's code that Ray copies to each host; None where all hosts share this one.
        notify: takes what the user must know.

    Raises:
        UsageError: Ray is not installed, there is no such cluster, or none of its hosts may measure.
    """

    def __init__(self, tune: Tune, address: str, ship: str | os.PathLike[str] | None, notify: Tell) -> None:
        self._ray = ray_cluster.imported()
        self._notify, self._folder = notify, Path.cwd()
        self._ship = None if ship is None else Path(ship).resolve()
        self._connected = ray_cluster.connect(self._ray, address, self._ship)
        self._has_gpus = self._checked()
        self._tune = tune
        self._shared: dict[int, Any] = {}
        self._ended: queue.SimpleQueue[tuple[_Job, Any]] = queue.SimpleQueue()
        self._at_fault: dict[str, str] = {}
        self._notified: set[str] = set()
        self._closing = threading.Event()
        self._jobs: list[_Job] = []
        self._open = 0  # cells without a result
        self._thread: threading.Thread | None = None
        own_node = {_NODE_LABEL: self._ray.get_runtime_context().get_node_id()}  # it must not be lost with a host
        self._progress = self._ray.remote(ray_host.ProgressActor).options(num_cpus=0, label_selector=own_node).remote()
        self._task = self._ray.remote(ray_host.tune_on_host)

    def _checked(self) -> bool:
        """Check that a host may measure; returns whether the cluster has GPUs.

        Raises:
            UsageError: none may.
        """
        resources = self._ray.cluster_resources()
        if MEASURING not in resources:
            self._disconnect()
            raise UsageError(
                f"no host of the cluster may measure: start Ray on each with --resources='{{\"{MEASURING}\": 1}}', of "
                "which each measurement on a CPU takes all: no two share a host",
                key="executor",
            )
        return "GPU" in resources

    def start(self, cells: Sequence[CellRequest], report: Report) -> Sequence[Future[CellResult]]:
        """See `Executor.start`.

        Raises:
            UsageError: a cell cannot be handed over, or names a GPU by its number.
        """
        self._jobs = [_Job(index, cell, self._packed(cell)) for index, cell in enumerate(cells)]
        self._open = len(self._jobs)
        for job in self._jobs:
            self._submit(job)
        self._thread = threading.Thread(target=self._run, args=(report,), name="autofit-ray", daemon=True)
        self._thread.start()
        return [job.future for job in self._jobs]

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        tasks = [job.task for job in self._jobs if not job.future.done()]
        for task in tasks:
            self._ray.cancel(task, force=False)  # as Ctrl-C in that process, which ends its trial
        if tasks:
            self._ray.wait(tasks, num_returns=len(tasks), timeout=_ENDING_SECONDS, fetch_local=False)
        self._ray.kill(self._progress)
        self._disconnect()

    def _disconnect(self) -> None:
        if self._connected:
            self._ray.shutdown()

    def _packed(self, cell: CellRequest) -> PickledCell:
        """A cell as it crosses; data that several cells have in common crosses once."""
        if cell.settings.device.startswith("gpu:"):
            raise UsageError("on a cluster Ray chooses the GPU: write gpu", key="device")
        if isinstance(cell.settings.devices, list):
            raise UsageError("on a cluster Ray chooses the GPUs: write how many", key="devices")
        workload = cell.workload
        data, validation = (self._handle(part) for part in (workload.data, workload.validation))
        bare = replace(cell, workload=replace(workload, data=None, validation=None))
        with explained_pickling_errors():
            pickled = cloudpickle.dumps(bare)
        return PickledCell(pickled, data, validation, self._folder, self._ship)

    def _handle(self, part: Any) -> Any:
        """What stands for data in a pickled cell: a reference to Ray's object, made once for each object."""
        if part is None or isinstance(part, Reference):
            return part
        if id(part) not in self._shared:
            with explained_pickling_errors():
                self._shared[id(part)] = self._ray.put(part)
        return self._shared[id(part)]

    def _submit(self, job: _Job) -> None:
        """Give a cell to Ray, for a host with its labels that is not at fault."""
        gpus = self._gpus_of(job)
        labels = dict(job.cell.host_labels)
        if self._at_fault:
            labels[_NODE_LABEL] = f"!in({','.join(self._at_fault)})"
        options = {
            "num_cpus": 0,  # the tune uses all cores of its share, whatever Ray counts
            "num_gpus": gpus,
            "resources": {MEASURING: _GPU_SHARE if gpus else 1},
            "max_retries": 0,  # a loss is counted here
            "name": f"cell {job.index + 1}",
            "label_selector": labels,
        }
        job.host, goes_on = "", bool(job.lost)
        job.task = self._task.options(**options).remote(self._progress, self._tune, job.index, job.pickled, goes_on)
        job.task.future().add_done_callback(partial(self._enqueue, job))

    def _gpus_of(self, job: _Job) -> int:
        """How many GPUs a cell holds; 0 for one on a CPU."""
        settings = job.cell.settings
        on_gpu = settings.device == "gpu" or (settings.device == "auto" and self._has_gpus)
        return settings.device_count if on_gpu else 0

    def _enqueue(self, job: _Job, done: Future[Any]) -> None:
        self._ended.put((job, done))

    def _run(self, report: Report) -> None:
        """Follow the tasks until all cells are done."""
        looked_at = looked_at_hosts = time.monotonic()
        try:
            while not self._closing.is_set() and self._open:
                try:
                    ended = [self._ended.get(timeout=_POLL_SECONDS)]
                except queue.Empty:
                    ended = []
                while not self._ended.empty():
                    ended.append(self._ended.get())
                if ended or time.monotonic() - looked_at > _POLL_SECONDS:
                    self._look_at_progress(report)
                    looked_at = time.monotonic()
                if time.monotonic() - looked_at_hosts > _HOSTS_SECONDS:
                    self._look_at_hosts()
                    looked_at_hosts = time.monotonic()
                for job, done in ended:
                    self._take(job, done)
        except BaseException as error:
            for job in self._jobs:
                if not job.future.done():
                    job.future.set_exception(
                        error if isinstance(error, ExecutorError) else ExecutorError(ray_endings.lost_cluster(error))
                    )

    def _look_at_progress(self, report: Report) -> None:
        latest: dict[int, tuple[str, str]] = {}
        for line in self._ray.get(self._progress.lines.remote()):
            if line.index is None:
                self._notify_once(line.text)
            else:
                latest[line.index] = line.host, line.text
        for index, (host, text) in latest.items():
            self._jobs[index].host = host
            if not self._jobs[index].future.done():
                report(index, host, text)

    def _notify_once(self, text: str) -> None:
        if text not in self._notified:
            self._notified.add(text)
            self._notify(text)

    def _take(self, job: _Job, done: Future[Any]) -> None:
        """Take over how a task ended."""
        error = done.exception()
        if error is None:
            result = done.result()
            if isinstance(result, HostFault):
                self._exclude(job, result)
            else:
                record = result.tune  # whose call source names the folder of a host
                record = None if record is None else replace(record, call_source=call_source_of(job.cell.workload))
                self._finish(job, replace(result, tune=record, note=_history(job, result.note)))
        elif ray_endings.is_loss(self._ray, error):
            self._lose(job, error)
        else:
            self._finish(job, CellResult(None, ray_endings.problem(error, job.host), job.host))

    def _finish(self, job: _Job, result: CellResult) -> None:
        self._open -= 1
        job.future.set_result(result)

    def _lose(self, job: _Job, error: BaseException) -> None:
        """The host of a cell is gone, or the process that tuned it."""
        job.lost.append(job.host or "a host")
        if len(job.lost) < _MOST_LOSSES:
            self._notify_once(f"{job.lost[-1]} was lost; cell {job.index + 1} goes to another host")
            self._submit(job)
        else:
            text = f"its host was lost twice ({', then '.join(job.lost)}); it is not tried on a third"
            self._finish(job, CellResult(None, f"{text}: {first_line(error)}", job.lost[-1]))

    def _exclude(self, job: _Job, fault: HostFault) -> None:
        """A host cannot tune: it gets no more cells, and this one goes elsewhere."""
        if fault.node not in self._at_fault:
            self._at_fault[fault.node] = f"{fault.host}: {fault.problem}"
            self._ray.get(self._progress.exclude.remote(fault.node))
            self._notify_once(f"{fault.host} gets no more cells: {fault.problem}")
            self._look_at_hosts()
        self._submit(job)

    def _look_at_hosts(self) -> None:
        """Look whether a host is left that may tune.

        Raises:
            ExecutorError: all are at fault.
        """
        nodes = [node for node in self._ray.nodes() if node["Alive"] and MEASURING in node["Resources"]]
        able = [node["NodeID"] for node in nodes]
        needed = max((self._gpus_of(job) for job in self._jobs if not job.future.done()), default=0)
        if able and needed > max(node["Resources"].get("GPU", 0) for node in nodes):
            self._notify_once(
                f"no host has {counted(needed, 'GPU')}: cells that need them wait until one joins the cluster"
            )
        if not able:
            self._notify_once("no host is left that may measure; cells wait until one joins the cluster")
        elif all(node in self._at_fault for node in able):
            raise ExecutorError("no host can tune:\n" + "\n".join(self._at_fault.values()))


def _history(job: _Job, continuation: str) -> str:
    """What the reader of a cell must know of its way: which host was lost, and how it went on."""
    return f"{job.lost[0]} was lost while it tuned this cell; {continuation}" if job.lost else ""
