"""Tune a cell as a Ray task, on the host that Ray chose."""

from __future__ import annotations

import os
import platform
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import psutil

from autofit.cluster.cells import HOST_ERRORS, CellRequest, Tune, tune_cell
from autofit.errors import UsageError
from autofit.records.result import Cell
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload

_OMP_THREADS = "OMP_NUM_THREADS"


class HostError(Exception):
    """A host cannot tune; raised by a task, so that Ray tries it again, if possible elsewhere."""


def tune_on_host(
    tune: Tune, pickled: bytes, parts: Sequence[Any], folder: Path | None
) -> Cell:
    """Tune a cell on this host.

    `parts` are data and validation in Ray's store, `folder` is a working folder that hosts share.
    """
    import ray

    # if Ray was started in the background; ray.cancel needs SIGINT
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Ray limits tasks with num_cpus=0 to one thread, unless the host has set the variable
    if _OMP_THREADS not in psutil.Process(os.getppid()).environ():
        os.environ.pop(_OMP_THREADS, None)
    if folder is not None and folder.is_dir():
        os.chdir(folder)
    # for the modules that unpickling imports
    sys.path.insert(0, str(Path.cwd()))
    request = cloudpickle.loads(pickled)
    data, validation = ray.get(list(parts))
    workload = replace(request.workload, data=data, validation=validation)
    request = replace(request, workload=workload)
    try:
        require_files(workload)
        cell = tune_cell(tune, on_own_share(ray, request))
    except HOST_ERRORS as error:
        raise HostError(f"{platform.node()} cannot tune: {error}") from None
    return replace(cell, host=platform.node())


def require_files(workload: Workload) -> None:
    """Raise `UsageError` if this host lacks a file of a workload."""
    if workload.script is not None:
        workload.script.validate()
    parts = (workload.build_model, workload.data, workload.validation)
    for part in (*parts, *workload.fit_kwargs.values()):
        if (
            isinstance(part, Reference)
            and part.path is not None
            and not part.path.is_file()
        ):
            remedy = "ship its folder (--ship FOLDER), or keep it in a folder that all hosts share"
            raise UsageError(
                f"there is no file {part.path} on {platform.node()}: {remedy}"
            )


def on_own_share(ray: Any, request: CellRequest) -> CellRequest:
    """Bind this process to the cores beside its GPUs; return the request with its share of RAM."""
    context = ray.get_runtime_context()
    node_id = context.get_node_id()
    node: Mapping[str, Any] = next(
        node for node in ray.nodes() if node["NodeID"] == node_id
    )
    own = context.get_accelerator_ids().get("GPU", [])
    count = int(node["Resources"].get("GPU", 0))
    if not 0 < len(own) < count:
        return request
    _bind_to_cores(own, count)
    memory = str(request.settings.host_memory).strip()
    if not memory.endswith("%"):
        return request
    share = f"{float(memory[:-1]) * len(own) / count:g}%"
    return replace(
        request, settings=request.settings.model_copy(update={"host_memory": share})
    )


def _bind_to_cores(own: Sequence[str], count: int) -> None:
    """Bind this process to the part of the cores that its GPUs, of `count`, have in their order."""
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // count
    # otherwise they are names of GPUs, which have no order
    if not each or not all(gpu.isdigit() for gpu in own):
        return
    bound: list[int] = []
    for gpu in own:
        first = int(gpu) % count * each
        bound += cores[first : first + each]
    os.sched_setaffinity(0, bound)
