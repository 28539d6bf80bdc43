"""Run the cells of a sweep as tasks of a Ray cluster, from the driver."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import cloudpickle

from autofit.cluster.cells import CellRequest, Tune
from autofit.cluster.host import HostError, tune_on_host
from autofit.errors import AutofitError, UsageError
from autofit.machine.gpus import parse_device
from autofit.records import install_command
from autofit.records.result import Cell
from autofit.records.units import counted
from autofit.tuning.settings import TuneSettings
from autofit.workload.binding import call_source_of
from autofit.workload.reference import Reference
from autofit.workload.workload import explained_pickling_errors

# the name of the custom Ray resource; each host has 1 of it
MEASURING = "measuring"
# share of a host's `measuring` that a cell on a GPU holds
_GPU_SHARE = 0.001
# of a task whose host is lost or cannot tune
_RETRIES = 2
# time that a cluster has to accept a connection
_ANSWER_SECONDS = 10.0
# time that cancelled tasks have to end their processes
_ENDING_SECONDS = 60.0


def tune_on_ray(
    requests: Sequence[CellRequest],
    tune: Tune,
    address: str,
    ship: str | os.PathLike[str] | None,
    notify: Callable[[str], None],
) -> Generator[tuple[int, Cell]]:
    """Tune cells on the hosts of a Ray cluster; yield each with its index when it has ended.

    Closing ends those that run. Hosts import `tune`, so it must be defined at the top level of a
    module. `address` is ray://HOST:PORT, or "ray" for the cluster that RAY_ADDRESS names or that
    runs on this machine. Ray copies the folder `ship` with the user's code to each host; if it is
    None, all hosts share the working folder.
    """
    folder = None if ship is None else Path(ship).resolve()
    if folder is not None and not folder.is_dir():
        raise UsageError(f"the folder {folder} does not exist", key="ship")
    try:
        import ray
    except ImportError:
        problem = f"Ray is not installed: {install_command('ray')}"
        raise UsageError(problem, key="executor") from None
    if any(request.settings.device.startswith("gpu:") for request in requests):
        problem = (
            "on a cluster, Ray chooses the GPUs; write device: gpu, or device: 2x gpu"
        )
        raise UsageError(problem, key="device")
    waiting: dict[Any, int] = {}
    disconnect = _connect(ray, address, folder)
    try:
        has_gpus = "GPU" in ray.cluster_resources()
        gpus = [_gpu_count(request.settings, has_gpus=has_gpus) for request in requests]
        _check_hosts(ray.nodes(), requests, gpus, notify)
        # one by one: if a cell cannot be submitted, those before it are cancelled
        tasks = _submit(ray, requests, gpus, tune, folder)
        waiting.update((task, index) for index, task in enumerate(tasks))
        while waiting:
            (task,), _ = ray.wait(list(waiting), num_returns=1)
            index = waiting.pop(task)
            yield index, _cell_of(ray, task, requests[index])
    finally:
        for task in waiting:
            # raises KeyboardInterrupt in the task, which then ends its trial
            ray.cancel(task)
        if waiting:
            ray.wait(list(waiting), num_returns=len(waiting), timeout=_ENDING_SECONDS)
        disconnect()


def _connect(ray: Any, address: str, ship: Path | None) -> Callable[[], None]:
    """Connect to a cluster, unless the user's program has done so; return how to disconnect."""
    if ray.is_initialized():
        if ship is not None:
            problem = "Ray is already connected; pass the folder to your"
            remedy = 'ray.init(runtime_env={"working_dir": …}) instead'
            raise UsageError(f"{problem} {remedy}", key="ship")
        return lambda: None
    runtime_env = {} if ship is None else {"working_dir": str(ship)}
    handler = signal.getsignal(signal.SIGTERM)
    named = os.environ.get("RAY_ADDRESS", "") if address == "ray" else address
    try:
        # Ray itself would try for minutes where no server listens
        parts = urlsplit(named if "://" in named else f"//{named}")
        if parts.hostname and parts.port:
            place = (parts.hostname, parts.port)
            socket.create_connection(place, timeout=_ANSWER_SECONDS).close()
        url = "auto" if address == "ray" else address
        ray.init(
            url, runtime_env=runtime_env, log_to_driver=False, logging_level="ERROR"
        )
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        problem = f"no Ray cluster answers at {named or address} ({reason})"
        hint = "start one with ray start --head, or name one as ray://HOST:10001"
        raise UsageError(f"{problem}; {hint}", key="executor") from None
    finally:
        # Ray's own handler for SIGTERM would end this program at once
        if (
            handler is not None
            and threading.current_thread() is threading.main_thread()
        ):
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
    """Raise `UsageError` if no host measures; notify of the cells that no host can tune."""
    hosts = [node for node in nodes if node["Alive"] and MEASURING in node["Resources"]]
    if not hosts:
        option = f"--resources='{{\"{MEASURING}\": 1}}'"
        problem = f"no host of the cluster has the resource {MEASURING!r}"
        remedy = f"start Ray on each host with {option}"
        effect = "autofit then runs one cell at a time on each host"
        raise UsageError(f"{problem}: {remedy}. {effect}", key="executor")
    notify(
        f"{counted(len(requests), 'cell')} on {counted(len(hosts), 'host')} of a Ray cluster"
    )
    lacking = set()
    for request, count in zip(requests, gpus, strict=True):
        # a label may also be a condition, such as !in(a, b), which only Ray can check
        exact = {
            label: value
            for label, value in request.host_labels.items()
            if not {"!", "("} & set(value)
        }
        if not any(
            host["Resources"].get("GPU", 0) >= count
            and exact.items() <= host["Labels"].items()
            for host in hosts
        ):
            needs = [counted(count, "GPU")] if count else []
            needs += [f"{label}={value}" for label, value in exact.items()]
            lacking.add(", ".join(needs))
    for needs_of_cells in sorted(lacking):
        consequence = "cells that need it wait until such a host joins the cluster"
        notify(f"no host has {needs_of_cells}: {consequence}")


def _submit(
    ray: Any,
    requests: Sequence[CellRequest],
    gpus: Sequence[int],
    tune: Tune,
    ship: Path | None,
) -> Iterator[Any]:
    """Submit a task for each cell, and yield it; data of several cells crosses the cluster once."""
    # a new worker process for each cell: a task changes its environment, working folder and cores
    options = {"max_calls": 1, "max_retries": _RETRIES, "retry_exceptions": [HostError]}
    task = ray.remote(**options)(tune_on_host)
    stored: dict[int, Any] = {}
    with explained_pickling_errors():
        for request in requests:
            for part in (request.workload.data, request.workload.validation):
                if id(part) not in stored:
                    stored[id(part)] = ray.put(_shipped(part, ship))
    shared_folder = Path.cwd() if ship is None else None
    for index, (request, count) in enumerate(zip(requests, gpus, strict=True)):
        with explained_pickling_errors():
            pickled = cloudpickle.dumps(_without_data(request, ship))
        optioned = task.options(
            name=f"cell {index + 1}",
            # the tune uses all cores of its host or of its GPUs, so Ray need not count them
            num_cpus=0,
            num_gpus=count,
            resources={MEASURING: _GPU_SHARE if count else 1},
            label_selector=dict(request.host_labels),
        )
        parts = [
            stored[id(part)]
            for part in (request.workload.data, request.workload.validation)
        ]
        yield optioned.remote(tune, pickled, parts, shared_folder)


def _without_data(request: CellRequest, ship: Path | None) -> CellRequest:
    workload = request.workload
    fit_kwargs = {
        name: _shipped(value, ship) for name, value in workload.fit_kwargs.items()
    }
    workload = replace(
        workload,
        build_model=_shipped(workload.build_model, ship),
        data=None,
        validation=None,
        fit_kwargs=fit_kwargs,
    )
    return replace(request, workload=workload)


def _shipped(value: Any, ship: Path | None) -> Any:
    """Return a value; a reference into the shipped folder points to the copy of it.

    That copy is the working folder of the task.
    """
    if ship is None or not isinstance(value, Reference) or value.path is None:
        return value
    if not value.path.is_relative_to(ship):
        return value
    return Reference(f"{value.path.relative_to(ship)}:{value.name}")


def _cell_of(ray: Any, task: Any, request: CellRequest) -> Cell:
    """Return the cell of a task that has ended; the error of a task that failed is its problem."""
    try:
        cell: Cell = ray.get(task)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        is_ours = isinstance(cause, AutofitError | HostError)
        return Cell(request.values, problem=str(cause if is_ours else error))
    # a call source made on the host imports from files on the host
    record = cell.tune and replace(
        cell.tune, call_source=call_source_of(request.workload)
    )
    return replace(cell, tune=record, values=request.values)
