"""`autofit doctor`: facts about this machine and its software, and one real trial.

Each says what to do if it is wrong.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import psutil
import typer

from autofit import backends
from autofit.backends.absent_gpu import known_of
from autofit.backends.protocol import Backend
from autofit.cli.common import Json, reporting_errors
from autofit.cli.known_workloads import known
from autofit.errors import AutofitError, UsageError
from autofit.machine import gpus, host
from autofit.records import DISTRIBUTION, __version__, install_command, version_of
from autofit.records.events import Activity
from autofit.records.knobs import FitConfig
from autofit.records.machine import Machine, Placement
from autofit.records.states import Outcome, Role
from autofit.records.trial import Limits, Measurement, TrialSpec
from autofit.records.units import counted, format_bytes, format_seconds
from autofit.report.console.tables import Terminal, two_columns
from autofit.trial.launcher import ProcessLauncher

_SHOWN = (*backends.NAMES, "keras", "numpy", "optuna", "protobuf")
# of host memory, of a GPU's and of temporary files: what a small tune takes of each
_LEAST_BYTES = 2**30
# of /dev/shm: locks and semaphores of worker processes take some KiB
_LEAST_SHARED_BYTES = 2**20
# enough for hundreds of studies
_LEAST_STORAGE_BYTES = 100 * 2**20
_IN_RAM = ("tmpfs", "ramfs")
_NETWORK = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "lustre",
    "beegfs",
    "gpfs",
    "fuse.sshfs",
)
# CUDA may have to compile kernels first
_DEADLINE_SECONDS = 60.0
# of a GPU: ample for one layer
_TRIAL_BYTES = 2**30
_AGAIN = "Correct this, then run autofit doctor again."
_IMPORT = (
    'Make python -c "import keras" work, in a new environment if necessary, or try '
    "--launch plain."
)
_STYLES = {"ok": "", "warning": "yellow", "problem": "bold red"}


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Its status is "ok", "warning" (autofit may be slow or its results unreliable) or "problem" (it
    does not work). The remedy is None if and only if the status is "ok".
    """

    status: str
    subject: str
    detail: str
    remedy: str | None = None


ok, warning, problem = (partial(Finding, status) for status in _STYLES)


def print_findings(
    events: Iterable[Finding | Activity], *, as_json: bool
) -> tuple[Finding, ...]:
    """Print findings as they arrive, or as JSON, and return them.

    Raise typer.Exit with code 1 if one is a problem.
    """
    console = Terminal(stderr=as_json)
    findings = []
    with console.status("") as spinner:
        for event in events:
            if isinstance(event, Activity):
                spinner.update(f"{event.doing} …")
                continue
            findings.append(event)
            if not as_json:
                remedy = [] if event.remedy is None else [("", f"→ {event.remedy}")]
                rows = [
                    (f"{event.status:<7}  {event.subject:<15}", event.detail),
                    *remedy,
                ]
                console.print(two_columns(rows), style=_STYLES[event.status])
    counts = Counter(finding.status for finding in findings)
    problems = counts["problem"]
    warnings = counts["warning"]
    if as_json:
        summary = {
            "version": 1,
            "autofit": __version__,
            "problems": problems,
            "warnings": warnings,
            "findings": [asdict(finding) for finding in findings],
        }
        typer.echo(json.dumps(summary, indent=2))
    else:
        total = f"{counted(problems, 'problem')}, {counted(warnings, 'warning')}"
        console.print(f"\n{total}. Questions: examples/FAQ.md")
    if problems:
        raise typer.Exit(1)
    return tuple(findings)


def doctor(as_json: Json = False) -> None:
    """Check this machine and its software, and print what is wrong and how to fix it.

    Trains a tiny model in its own process, which takes some seconds.

    Exit codes: 0 no problems (warnings are possible); 1 at least one problem.
    """
    with reporting_errors():
        print_findings(diagnose(), as_json=as_json)


def diagnose() -> Iterator[Finding | Activity]:
    """Yield a finding for each fact, and an Activity before the trial, which takes seconds."""
    yield _software()
    backend = None
    placement = None
    machine = host.detect(gpus.nvidia_devices())
    try:
        backend = backends.current()
        yield ok("keras backend", f"{backend.name} {version_of(backend.name)}")
    except UsageError as error:
        yield problem("keras backend", str(error), _AGAIN)
    try:
        placement = gpus.choose_placement(machine, "auto")
        yield from _on_gpus(machine)
    except UsageError as error:
        yield problem(
            "gpu",
            str(error),
            "Make nvidia-smi show the GPU and its memory, or set device: cpu.",
        )
    remedy = "End other processes, or raise the limit of the container (docker run --memory)."
    yield _memory(
        "host memory", machine.available_bytes, machine.memory_bytes, "", remedy
    )
    if sys.platform == "linux":
        yield _shared_memory(*host.shared_memory())
    yield _cores(host.visible_cores(), host.cpu_quota())
    if work := host.other_work():
        yield warning("load", work, "End that work before a tune: it lowers rates.")
    else:
        yield ok("load", "no other work")
    larger_disk = (
        "Run export TMPDIR=FOLDER with a folder on a larger disk, such as /var/tmp: arrays for "
        "trials lie there."
    )
    yield _folder(
        "temporary files", host.temporary_folder(), _LEAST_BYTES, _IN_RAM, larger_disk
    )
    # imported late, because it loads Optuna
    from autofit.storage import connection

    file = connection.file_of(None)
    assert file is not None, "the storage of a tune is a file unless another is given"
    elsewhere = (
        "Store trials elsewhere (--storage FILE.sqlite3); SQLite cannot lock files on a network "
        "drive."
    )
    yield _folder("storage", file.parent, _LEAST_STORAGE_BYTES, _NETWORK, elsewhere)
    if backend is not None and placement is not None:
        yield Activity("training a tiny model in its own process")
        yield _trial(backend, machine, placement)


def _software() -> Finding:
    parts = [
        f"{platform.system()} {platform.release()}",
        platform.machine(),
        f"Python {platform.python_version()}",
    ]
    parts += [f"{name} {version}" for name in _SHOWN if (version := version_of(name))]
    listed = ", ".join(parts)
    if version := version_of("autofit"):
        remedy = (
            f"Run pip uninstall -y autofit {DISTRIBUTION}, then {install_command()}."
        )
        another = f"autofit {version}, another project, overwrites files of this one"
        return warning("software", f"{listed}; {another}", remedy)
    return ok("software", listed)


def _on_gpus(machine: Machine) -> Iterator[Finding]:
    if not machine.devices:
        selection = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
        none = f"the NVIDIA driver reports none (CUDA_VISIBLE_DEVICES: {selection})"
        yield ok("gpu", f"{none}: trials run on the CPU")
    for gpu in machine.devices:
        note = f" on {gpu.name}: {known_of(gpu.name)}"
        these = "the processes that nvidia-smi lists"
        if gpu.held_by:
            note += f"; {', '.join(gpu.held_by)}"
            these = "these processes"
        remedy = f"End {these}, or select another GPU."
        yield _memory(f"gpu:{gpu.index}", gpu.free_bytes, gpu.total_bytes, note, remedy)


# limits are shares of free memory, so little of it is a warning, and too little for any tune a
# problem
def _memory(
    subject: str, free_bytes: int, total_bytes: int, note: str, remedy: str
) -> Finding:
    detail = f"{format_bytes(free_bytes)} of {format_bytes(total_bytes)} free{note}"
    if free_bytes >= total_bytes / 2 and free_bytes >= _LEAST_BYTES:
        return ok(subject, detail)
    return (problem if free_bytes < _LEAST_BYTES else warning)(subject, detail, remedy)


# of /dev/shm, which holds the locks and shared memory of worker processes; its size is 0 if it is
# missing
def _shared_memory(size_bytes: int, free_bytes: int) -> Finding:
    detail = "missing"
    if size_bytes:
        detail = f"{format_bytes(free_bytes)} of {format_bytes(size_bytes)} free"
    if free_bytes >= _LEAST_SHARED_BYTES:
        return ok("/dev/shm", detail)
    remedy = (
        "Start the container with docker run --shm-size=2g, or run mount -o remount,size=2g "
        "/dev/shm."
    )
    return problem(
        "/dev/shm", f"{detail}: worker processes crash when they share memory", remedy
    )


def _cores(visible: int, quota: float | None) -> Finding:
    if quota is None or quota >= visible:
        return ok("cores", f"{visible}")
    stops = f"the kernel stops all when the quota of {quota:.3g} is used up"
    remedy = "Use docker run --cpuset-cpus instead of --cpus."
    return warning(
        "cores", f"{visible}, with a thread of the backend on each; {stops}", remedy
    )


# a folder or, if it does not exist yet, its nearest parent
def _folder(
    subject: str, path: Path, least_bytes: int, unsuitable: Collection[str], remedy: str
) -> Finding:
    # Path.is_dir raises if this process may not enter a parent
    folders = (path, *path.parents)
    existing = next(folder for folder in folders if os.path.isdir(folder))  # noqa: PTH112
    if not os.access(existing, os.W_OK | os.X_OK):
        return problem(subject, f"{path} is not writable", remedy)
    file_system = ""
    longest = -1
    for mount in psutil.disk_partitions(all=True):
        is_above = existing.resolve().is_relative_to(mount.mountpoint)
        if is_above and len(mount.mountpoint) > longest:
            longest = len(mount.mountpoint)
            file_system = mount.fstype
    free_bytes = shutil.disk_usage(existing).free
    detail = f"{format_bytes(free_bytes)} free in {path}"
    if file_system:
        detail += f" on {file_system}"
    is_good = free_bytes >= least_bytes and file_system not in unsuitable
    return ok(subject, detail) if is_good else warning(subject, detail, remedy)


def _trial(backend: Backend, machine: Machine, placement: Placement) -> Finding:
    gpu = placement.device
    began = time.monotonic()
    device_bytes = None if gpu is None else min(_TRIAL_BYTES, gpu.free_bytes // 2)
    spec = TrialSpec(
        Role.MEASURE,
        FitConfig(batch_size=8),
        Limits(device_bytes, machine.available_bytes),
        _DEADLINE_SECONDS,
        measure_seconds=0.3,
    )
    try:
        # on a GPU, cuDNN computes the convolution, and cuDNN is the library that is broken most
        # often
        with ProcessLauncher(known(model={"filters": 2}), placement) as launcher:
            launcher.warm()
            ready = time.monotonic()
            measured = launcher.run(spec)
    except UsageError as error:
        return problem("trial", str(error), _AGAIN)
    except (AutofitError, OSError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reasons = " / ".join(dict.fromkeys([lines[0], lines[-1]]))
        return problem("trial", f"did not start: {reasons}", _IMPORT)
    trained = f"a tiny model on the {placement.name}"
    if isinstance(measured, Measurement) and measured.outcome is not Outcome.OK:
        outcome = measured.outcome
        detail = f"{trained} ended as {outcome.value}: {measured.evidence.reason}"
        return problem(
            "trial", detail, _remedy(outcome, backend, is_on_gpu=gpu is not None)
        )
    started = format_seconds(ready - began)
    took = format_seconds(time.monotonic() - ready)
    return ok("trial", f"server ready in {started}; trained {trained} in {took}")


def _remedy(outcome: Outcome, backend: Backend, *, is_on_gpu: bool) -> str:
    if outcome.is_oom:
        return "End the processes that hold the memory."
    if outcome is Outcome.TIMEOUT and is_on_gpu:
        return (
            "CUDA may be compiling the backend's code for this GPU, once: run autofit "
            "doctor again."
        )
    if outcome is not Outcome.ERROR:
        return (
            "Use --launch plain (in Python, options={'launch': 'plain'}): each trial then "
            "starts its own interpreter."
        )
    if not is_on_gpu:
        return _IMPORT
    return (
        f"Run {install_command(backend.gpu_extra)} in a new environment: CUDA's libraries "
        f"and {backend.name} must match."
    )
