"""Tune the cells of a sweep: one here, or all on a Ray cluster, with one Ray task for each cell.

    tune_on_ray ── task ──> host 1: _tune_on_host
         │      ── task ──> host 2: _tune_on_host
         └───── yields each cell when its task has ended

Each host has the resource `measuring`. A cell on the CPU holds 1 of it, because nothing else may run on its host; a cell on
GPUs holds a small share of it, so cells on different GPUs of a host may run at the same time. Ray queues the tasks and
chooses hosts by resources and labels. If a host is lost or cannot tune, Ray runs the task again.
"""

from __future__ import annotations

import os
import platform
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import cloudpickle
import psutil

from autofit.errors import (
    AutofitError,
    DeviceBusyError,
    StorageError,
    TrialProcessError,
    TuneError,
    UsageError,
)
from autofit.machine.gpus import parse_device
from autofit.records import install_command
from autofit.records.result import Cell, TuneRecord
from autofit.records.units import counted
from autofit.tuning.settings import TuneSettings
from autofit.workload.binding import call_source_of
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload, explained_pickling_errors

MEASURING = "measuring"  # the name of the custom Ray resource; each host has 1 of it
_GPU_SHARE = 0.001  # share of a host's `measuring` that a cell on a GPU holds
_RETRIES = 2  # of a task whose host is lost or cannot tune
_ANSWER_SECONDS = 10.0  # time that a cluster has to accept a connection
_ENDING_SECONDS = 60.0  # time that cancelled tasks have to end their processes
_OMP_THREADS = "OMP_NUM_THREADS"
# of a host rather than of a cell: every other cell would fail on that host as well
_HOST_ERRORS = (DeviceBusyError, StorageError, TrialProcessError)


@dataclass(frozen=True)
class CellRequest:
    """A cell to tune: its values by axis, and the workload and settings of its tune."""

    values: Mapping[str, Any]
    workload: Workload
    settings: TuneSettings
    host_labels: Mapping[str, str] = field(
        default_factory=dict
    )  # that a host of a cluster must have to tune the cell


Tune = Callable[[CellRequest], TuneRecord]  # tunes one cell


def tuned(tune: Tune, request: CellRequest) -> Cell:
    """Tune a cell. An error is stored as the `problem` of the cell; only an error of the host is raised."""
    try:
        record = tune(request)
    except AutofitError as error:
        if isinstance(error, _HOST_ERRORS):
            raise
        failed = error.tune if isinstance(error, TuneError) else None
        return Cell(request.values, failed, str(error), failed.machine.host if failed else "")
    return Cell(request.values, record, host=record.machine.host)


class HostError(Exception):
    """A host cannot tune; raised by a task, so that Ray runs it again, if possible on another host."""


def tune_on_ray(
    requests: Sequence[CellRequest],
    tune: Tune,
    address: str,
    ship: str | os.PathLike[str] | None,
    notify: Callable[[str], None],
) -> Generator[tuple[int, Cell]]:
    """Tune cells on the hosts of a Ray cluster; yield each with its index when it has ended. Closing ends those that run.

    Hosts import `tune`, so it must be defined at the top level of a module. `address` is ray://HOST:PORT, or "ray" for the
    cluster that RAY_ADDRESS names or that runs on this machine. Ray copies the folder `ship` with the user's code to each
    host; if it is None, all hosts share the working folder.
    """
    folder = None if ship is None else Path(ship).resolve()
    if folder is not None and not folder.is_dir():
        raise UsageError(f"the folder {folder} does not exist", key="ship")
    try:
        import ray
    except ImportError:
        raise UsageError(
            f"Ray is not installed: {install_command('ray')}", key="executor"
        ) from None
    if any(request.settings.device.startswith("gpu:") for request in requests):
        raise UsageError(
            "on a cluster, Ray chooses the GPUs; write device: gpu, or device: 2x gpu", key="device"
        )
    waiting: dict[Any, int] = {}
    disconnect = _connect(ray, address, folder)
    try:
        has_gpus = "GPU" in ray.cluster_resources()
        gpus = [_gpu_count(request.settings, has_gpus=has_gpus) for request in requests]
        _check_hosts(ray.nodes(), requests, gpus, notify)
        tasks = _submitted(ray, requests, gpus, tune, folder)
        waiting.update((task, index) for index, task in enumerate(tasks))
        while waiting:
            (task,), _ = ray.wait(list(waiting), num_returns=1)
            index = waiting.pop(task)
            yield index, _ended(ray, task, requests[index])
    finally:
        for task in waiting:
            ray.cancel(task)  # raises KeyboardInterrupt in the task; the task then ends its trial
        if waiting:
            ray.wait(list(waiting), num_returns=len(waiting), timeout=_ENDING_SECONDS)
        disconnect()


def _connect(ray: Any, address: str, ship: Path | None) -> Callable[[], None]:
    """Connect to a cluster, unless the user's program has done so; return how to disconnect."""
    if ray.is_initialized():
        if ship is not None:
            problem = 'Ray is already connected; pass the folder to your ray.init(runtime_env={"working_dir": …}) instead'
            raise UsageError(problem, key="ship")
        return lambda: None
    runtime_env = {} if ship is None else {"working_dir": str(ship)}
    handler = signal.getsignal(signal.SIGTERM)
    named = os.environ.get("RAY_ADDRESS", "") if address == "ray" else address
    try:
        parts = urlsplit(named if "://" in named else f"//{named}")
        if (
            parts.hostname and parts.port
        ):  # if no server listens there, Ray itself would try for minutes
            socket.create_connection((parts.hostname, parts.port), timeout=_ANSWER_SECONDS).close()
        url = "auto" if address == "ray" else address
        ray.init(url, runtime_env=runtime_env, log_to_driver=False, logging_level="ERROR")
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        problem = f"no Ray cluster answers at {named or address} ({reason})"
        hint = "start one with ray start --head, or name one as ray://HOST:10001"
        raise UsageError(f"{problem}; {hint}", key="executor") from None
    finally:
        # Ray installs its own handler for SIGTERM, which would end this program at once; restore the previous one.
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
    return ray.shutdown  # type: ignore[no-any-return]  # Ray has no types


def _gpu_count(settings: TuneSettings, *, has_gpus: bool) -> int:
    kind, count, _ = parse_device(settings.device)
    return count if kind == "gpu" or (kind == "auto" and has_gpus) else 0


def _check_hosts(
    nodes: Sequence[Mapping[str, Any]],
    requests: Sequence[CellRequest],
    gpus: Sequence[int],
    notify: Callable[[str], None],
) -> None:
    hosts = [node for node in nodes if node["Alive"] and MEASURING in node["Resources"]]
    if not hosts:
        option = f"--resources='{{\"{MEASURING}\": 1}}'"
        problem = f"no host of the cluster has the resource {MEASURING!r}: start Ray on each host with {option}"
        raise UsageError(
            f"{problem}. autofit then runs one cell at a time on each host", key="executor"
        )
    notify(f"{counted(len(requests), 'cell')} on {counted(len(hosts), 'host')} of a Ray cluster")
    lacking = set()
    for request, count in zip(requests, gpus, strict=True):
        # a label may also be a condition, such as !in(a, b), which only Ray can check
        exact = {
            label: value
            for label, value in request.host_labels.items()
            if not {"!", "("} & set(value)
        }
        if not any(
            host["Resources"].get("GPU", 0) >= count and exact.items() <= host["Labels"].items()
            for host in hosts
        ):
            needs = [f"{label}={value}" for label, value in exact.items()]
            lacking.add(", ".join([counted(count, "GPU"), *needs] if count else needs))
    for needs_of_cells in sorted(lacking):
        notify(
            f"no host has {needs_of_cells}: cells that need it wait until such a host joins the cluster"
        )


def _submitted(
    ray: Any, requests: Sequence[CellRequest], gpus: Sequence[int], tune: Tune, ship: Path | None
) -> Iterator[Any]:
    """Submit a task for each cell, and yield it. Data that several cells share crosses the cluster once."""
    # a new worker process for each cell, because a task changes its environment, working folder and cores
    task = ray.remote(max_calls=1, max_retries=_RETRIES, retry_exceptions=[HostError])(
        _tune_on_host
    )
    shared = {
        id(part): part
        for request in requests
        for part in (request.workload.data, request.workload.validation)
    }
    with explained_pickling_errors():
        stored = {identity: ray.put(_shipped(part, ship)) for identity, part in shared.items()}
    for index, (request, count) in enumerate(zip(requests, gpus, strict=True)):
        workload = replace(
            request.workload,
            build_model=_shipped(request.workload.build_model, ship),
            data=None,
            validation=None,
            fit_kwargs={
                name: _shipped(value, ship) for name, value in request.workload.fit_kwargs.items()
            },
        )
        with explained_pickling_errors():
            pickled = cloudpickle.dumps(replace(request, workload=workload))
        options = task.options(
            name=f"cell {index + 1}",
            num_cpus=0,  # the tune uses all cores of its host or of its GPUs, so Ray need not count them
            num_gpus=count,
            resources={MEASURING: _GPU_SHARE if count else 1},
            label_selector=dict(request.host_labels),
        )
        parts = [stored[id(part)] for part in (request.workload.data, request.workload.validation)]
        yield options.remote(tune, pickled, parts, Path.cwd() if ship is None else None)


def _shipped(value: Any, ship: Path | None) -> Any:
    """Let a reference into the shipped folder point to the copy of it, which is the working folder of the task."""
    if (
        ship is None
        or not isinstance(value, Reference)
        or value.path is None
        or not value.path.is_relative_to(ship)
    ):
        return value
    return Reference(f"{value.path.relative_to(ship)}:{value.name}")


def _ended(ray: Any, task: Any, request: CellRequest) -> Cell:
    """Return the cell of a task that has ended. If the task failed, its error is the problem of the cell."""
    try:
        cell: Cell = ray.get(task)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        return Cell(
            request.values,
            problem=str(cause if isinstance(cause, AutofitError | HostError) else error),
        )
    # a call source made on the host imports from files on the host
    record = cell.tune and replace(cell.tune, call_source=call_source_of(request.workload))
    return replace(cell, tune=record, values=request.values)


def _tune_on_host(tune: Tune, pickled: bytes, parts: Sequence[Any], folder: Path | None) -> Cell:
    """Tune a cell on this host; `parts` are data and validation in Ray's store, `folder` a shared working folder."""
    import ray

    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # if Ray was started in the background; ray.cancel needs SIGINT
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Ray limits tasks with num_cpus=0 to one thread, unless the host has set the variable
    if _OMP_THREADS not in psutil.Process(os.getppid()).environ():
        os.environ.pop(_OMP_THREADS, None)
    if folder is not None and folder.is_dir():
        os.chdir(folder)
    sys.path.insert(0, str(Path.cwd()))  # for the modules that the next lines import
    request = cloudpickle.loads(pickled)
    data, validation = ray.get(list(parts))
    request = replace(request, workload=replace(request.workload, data=data, validation=validation))
    try:
        _check_files(request.workload)
        return replace(tuned(tune, _on_own_share(ray, request)), host=platform.node())
    except _HOST_ERRORS as error:
        raise HostError(f"{platform.node()} cannot tune: {error}") from None


def _check_files(workload: Workload) -> None:
    if workload.script is not None:
        workload.script.validate()
    for part in (
        workload.build_model,
        workload.data,
        workload.validation,
        *workload.fit_kwargs.values(),
    ):
        if isinstance(part, Reference) and part.path is not None and not part.path.is_file():
            remedy = "ship its folder (--ship FOLDER), or keep it in a folder that all hosts share"
            raise UsageError(f"there is no file {part.path} on {platform.node()}: {remedy}")


def _on_own_share(ray: Any, request: CellRequest) -> CellRequest:
    context = ray.get_runtime_context()
    node: Mapping[str, Any] = next(
        node for node in ray.nodes() if node["NodeID"] == context.get_node_id()
    )
    own, count = context.get_accelerator_ids().get("GPU", []), int(node["Resources"].get("GPU", 0))
    if not 0 < len(own) < count:
        return request
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // count
    if each and all(
        gpu.isdigit() for gpu in own
    ):  # else they are names of GPUs, which have no order
        firsts = [int(gpu) % count * each for gpu in own]
        os.sched_setaffinity(0, [core for first in firsts for core in cores[first : first + each]])
    memory = str(request.settings.host_memory).strip()
    if not memory.endswith("%"):
        return request
    share = f"{float(memory[:-1]) * len(own) / count:g}%"
    return replace(request, settings=request.settings.model_copy(update={"host_memory": share}))
