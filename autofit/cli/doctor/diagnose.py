"""What autofit sees of a machine and its software: each check is a function of what was read, and gives findings.

read the world ─> checks ─> Finding ─┐
Look (imports TensorFlow) ─> Sight  ─┼─> whoever draws
a real trial of a tiny model        ─┘
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator

import psutil

from autofit.backends.tensorflow.probe import Probe, ProbeFailure
from autofit.cli.doctor import folders, gpus, memory, processes, smoke_trial, software
from autofit.cli.doctor.findings import Finding, Status, problem
from autofit.errors import AutofitError
from autofit.machine import host
from autofit.machine.gpus import survey
from autofit.records.events import Activity
from autofit.records.machine import Device, Machine
from autofit.storage import urls
from autofit.trial.launcher import ProcessLauncher

__all__ = ["diagnose"]

_IMPORT_SECONDS = 120.0  # from a cold disk it takes half a minute


def diagnose() -> Iterator[Finding | Activity]:
    """Look at everything: what can be read comes at once, what must be tried after it.

    Yields:
        Findings, and before what takes seconds an Activity that says what is being done.
    """
    where = software.platform(platform.system(), platform.release(), platform.machine())
    yield where
    yield software.python(platform.python_version(), software.python_wanted())
    if where.status is Status.PROBLEM:
        return
    visible, everything = survey(), survey(hidden=True)
    backend = software.keras_backend(os.environ, software.configured_backend(os.environ))
    with Probe() as look:
        yield from _libraries()
        yield backend
        yield from software.variables(os.environ)
        yield from gpus.reported(visible, everything, os.environ, plugged_in=gpus.on_bus())
        yield from _memory()
        yield from _processes()
        yield folders.check_temporary(folders.temporary())
        yield folders.check_storage(folders.read(folders.folder_of(urls.default_storage())))
        yield Activity("importing TensorFlow, to see what it sees")
        report = look.result(_IMPORT_SECONDS)
    yield from gpus.seen(report, visible, os.environ)
    if isinstance(report, ProbeFailure) or backend.status is Status.PROBLEM:
        return
    yield Activity("trying a tiny model in a process of its own")
    usable = tuple(device for device in visible if isinstance(device, Device))
    yield _trial(host.detect(usable), usable[0] if usable and report.gpus else None)


def _libraries() -> Iterator[Finding]:
    providers = {name: list(found) for name, found in importlib.metadata.packages_distributions().items()}
    yield from software.libraries(software.version_of, software.requirements_of, providers)
    legacy = software.legacy_keras(os.environ, software.version_of("tensorflow"), software.version_of("tf_keras"))
    if legacy is not None:
        yield legacy


def _memory() -> Iterator[Finding]:
    total = psutil.virtual_memory().total
    yield memory.host(host.detect(), total, memory.holders)
    yield memory.swap(*memory.swap_use(), total)
    shared = memory.shared(*host.shared_memory(), expected=sys.platform == "linux")
    if shared is not None:
        yield shared


def _processes() -> Iterator[Finding]:
    yield processes.cores(os.cpu_count() or 1, host.visible_cores(), host.cpu_quota())
    yield from processes.limits(*processes.resource_limits(), host.process_limit())
    kills = processes.oom_kills(visible=host.counts_oom_kills(), system=sys.platform)
    if kills is not None:
        yield kills


def _trial(here: Machine, device: Device | None) -> Finding:
    try:
        with ProcessLauncher(smoke_trial.workload(), device) as launcher:
            return smoke_trial.attempt(launcher, here, device, forks=sys.platform == "linux")
    except (AutofitError, OSError) as error:
        return problem("trial", f"could not be prepared: {error}", "Mend the problems above first.")
