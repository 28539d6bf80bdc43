"""Run all checks, each a function from readings to findings; a trial of a tiny model comes last."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil

from autofit.cli.doctor import gpus, resources, smoke_trial, software
from autofit.cli.doctor.findings import Finding, Status, problem
from autofit.errors import AutofitError
from autofit.machine import host
from autofit.machine.gpus import survey, unusable_gpu
from autofit.records.events import Activity
from autofit.records.machine import Device, Machine, Placement
from autofit.storage import urls
from autofit.trial.launcher import ProcessLauncher


def diagnose(storage: str | None = None) -> Iterator[Finding | Activity]:
    """Run all checks, and check `storage` if it is given; yield an Activity before each step that takes seconds."""
    system = software.platform(platform.system(), platform.release(), platform.machine(), platform.python_version())
    yield system
    if system.status is Status.PROBLEM:
        return
    visible = survey()
    usable = tuple(device for device in visible if isinstance(device, Device))
    machine = host.detect(usable)
    backend = software.keras_backend(os.environ, software.version_of)
    yield from software.libraries(software.version_of, software.requirements(), importlib.metadata.packages_distributions())
    yield backend
    yield from software.allocator(os.environ)
    yield from gpus.driver(visible, survey(hidden=True), unusable_gpu(), os.environ)
    yield resources.memory(machine, psutil.virtual_memory().total)
    if sys.platform == "linux":
        yield resources.shared_memory(*host.shared_memory())
    yield resources.cores(host.visible_cores(), host.cpu_quota())
    yield resources.temporary_files(resources.read_temporary_folder())
    yield resources.storage(resources.read_folder(Path(urls.default_storage().removeprefix(urls.SQLITE)).parent))
    if storage is not None:
        yield Activity("checking the storage")
        yield resources.storage_at(storage)
    if backend.status is not Status.PROBLEM:
        yield Activity("training a tiny model in its own process")
        yield from _trials(machine, usable[0] if usable else None)


def _trials(machine: Machine, device: Device | None) -> Iterator[Finding]:
    """Run a trial and, if it succeeds on a GPU, another one whose train step XLA compiles."""
    forks = sys.platform == "linux"
    try:
        with ProcessLauncher(smoke_trial.workload(), Placement.on(*([device] if device else []))) as launcher:
            finding = smoke_trial.attempt(launcher, machine, device, forks=forks)
            yield finding
            if device is not None and finding.status is Status.OK:
                launcher.change(smoke_trial.workload(jit_compile=True))
                compiled = smoke_trial.attempt(launcher, machine, device, forks=forks)
                yield replace(compiled, subject="XLA trial")
    except (AutofitError, OSError) as error:
        yield problem("trial", f"a trial could not be prepared: {error}", "Fix the problems above first.")
