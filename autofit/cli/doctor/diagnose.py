"""Run all checks: each is a function from readings to findings.

The quick ones come first:

    readings ──────────────────────────> checks ─> Finding ─┐
    Probe (imports TensorFlow) ─> BackendReport ─> Finding ─┼─> printing
    a real trial of a tiny model ────────────────> Finding ─┘
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil

from autofit.backends.keras_config import backend_name
from autofit.backends.tensorflow.backend import TensorFlow
from autofit.backends.tensorflow.probe import Probe, ProbeFailure
from autofit.cli.doctor import folders, gpus, memory_checks, processes, smoke_trial, software, storages
from autofit.cli.doctor.findings import Finding, Status, problem
from autofit.errors import AutofitError
from autofit.machine import host
from autofit.machine.gpus import survey
from autofit.records.events import Activity
from autofit.records.machine import Device, Machine, Placement
from autofit.storage import urls
from autofit.trial.launcher import ProcessLauncher

_IMPORT_SECONDS = 120.0  # from a cold disk the import takes half a minute


def diagnose(storage: str | None = None) -> Iterator[Finding | Activity]:
    """Run all checks.

    Args:
        storage: to check, too; None for the default one alone.

    Yields:
        Findings, and an Activity before each step that takes seconds.
    """
    system = software.platform(platform.system(), platform.release(), platform.machine())
    yield system
    yield software.python(platform.python_version(), software.supported_python())
    if system.status is Status.PROBLEM:
        return
    visible, installed = survey(), survey(hidden=True)
    legacy_keras = software.legacy_keras(os.environ, software.version_of("tensorflow"), software.version_of("tf_keras"))
    backend = software.keras_backend(os.environ, software.version_of)
    probe = Probe() if backend_name(os.environ) == TensorFlow.name else None
    report = None
    with probe or contextlib.nullcontext():
        yield from software.libraries(
            software.version_of, software.requirements_of, importlib.metadata.packages_distributions()
        )
        yield from filter(None, [legacy_keras, backend])
        yield from software.variables(os.environ)
        yield from gpus.driver(visible, installed, os.environ, plugged_in=gpus.on_bus())
        yield from filter(None, _checks_of_the_host())
        if storage is not None:
            yield Activity("checking the storage")
            yield storages.named(storage)
        if probe is not None:
            yield Activity("importing TensorFlow")
            report = probe.result(_IMPORT_SECONDS)
    if report is not None:
        yield from gpus.tensorflow(report, visible, os.environ)
    if isinstance(report, ProbeFailure) or backend.status is Status.PROBLEM:
        return
    yield Activity("training a tiny model in its own process")
    usable = tuple(device for device in visible if isinstance(device, Device))
    on_gpu = usable and (report is None or report.gpus)
    yield from _trials(host.detect(usable), usable[0] if on_gpu else None)


def _checks_of_the_host() -> Iterator[Finding | None]:
    total = psutil.virtual_memory().total
    yield memory_checks.host(host.detect(), total, memory_checks.holders)
    yield memory_checks.swap(*memory_checks.swap_use(), total)
    yield memory_checks.shared(*host.shared_memory(), expected=sys.platform == "linux")
    yield processes.cores(os.cpu_count() or 1, host.visible_cores(), host.cpu_quota())
    yield from processes.limits(*processes.resource_limits(), host.process_limit())
    yield processes.oom_kills(visible=host.counts_oom_kills(), system=sys.platform)
    yield folders.temporary_files(folders.read_temporary())
    yield folders.storage(folders.read(Path(urls.default_storage().removeprefix(urls.SQLITE)).parent))


def _trials(machine: Machine, device: Device | None) -> Iterator[Finding]:
    """Run a real trial, on a GPU another one with XLA, which compiles the step itself."""
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
        yield problem("trial", f"preparing a trial failed: {error}", "Fix the problems above first.")
