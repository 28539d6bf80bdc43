"""`autofit doctor`: run all checks and print the findings as they arrive, or as JSON."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import psutil
import typer

from autofit import backends
from autofit.cli.doctor import resources, smoke_trial, software
from autofit.cli.exit import reporting_errors
from autofit.cli.findings import Finding, Status, findings_as_json, ok, print_findings, problem
from autofit.cli.options import Json, Storage
from autofit.errors import AutofitError
from autofit.machine import host, verified
from autofit.machine.gpus import survey, unusable_gpu
from autofit.records.distribution import version_of
from autofit.records.events import Activity
from autofit.records.machine import Device, Machine, Placement
from autofit.records.units import counted
from autofit.report.console.terminal import Terminal
from autofit.storage import urls
from autofit.trial.launcher import ProcessLauncher


def doctor(as_json: Json = False, storage: Storage = None) -> None:
    """Check this machine and its software, and print what is wrong and how to fix it.

    Trains a tiny model in its own process, which takes some seconds. With --storage, also checks that a database answers
    or that the lock of a journal works.

    Exit codes: 0 no problems (warnings are possible); 1 at least one problem.
    """
    console = Terminal()
    with reporting_errors():
        findings = print_findings(diagnose(storage), None if as_json else console, Terminal(stderr=True))
    count = Counter(finding.status for finding in findings)
    problems, warnings = count[Status.PROBLEM], count[Status.WARNING]
    if as_json:
        typer.echo(findings_as_json(findings, problems=problems, warnings=warnings))
    else:
        console.print(f"\n{counted(problems, 'problem')}, {counted(warnings, 'warning')}.")
    if problems:
        raise typer.Exit(1)


def diagnose(storage: str | None = None) -> Iterator[Finding | Activity]:
    """Run all checks, and check `storage` if it is given; yield an Activity before each step that takes seconds."""
    system = software.platform(platform.system(), platform.release(), platform.machine(), platform.python_version())
    yield system
    if system.status is Status.PROBLEM:
        return
    visible = survey()
    usable = tuple(device for device in visible if isinstance(device, Device))
    machine = host.detect(usable)
    backend = software.keras_backend(os.environ, version_of)
    yield from software.libraries(version_of, software.requirements(), importlib.metadata.packages_distributions())
    yield backend
    yield from software.allocator(os.environ)
    yield from resources.gpus(visible, survey(hidden=True), unusable_gpu(), os.environ)
    yield resources.memory(machine, psutil.virtual_memory().total)
    if sys.platform == "linux":
        yield resources.shared_memory(*host.shared_memory(), len(usable))
    yield resources.cores(host.visible_cores(), host.cpu_quota())
    yield resources.temporary_files()
    yield resources.storage_at(urls.default_storage())
    if result := verified.last():
        yield ok("verify", result)
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
            uses_xla = backends.current().name != "torch"  # there, jit_compile is torch.compile, which takes minutes
            if device is not None and finding.status is Status.OK and uses_xla:
                launcher.change(smoke_trial.workload(jit_compile=True))
                compiled = smoke_trial.attempt(launcher, machine, device, forks=forks)
                yield replace(compiled, subject="XLA trial")
    except (AutofitError, OSError) as error:
        yield problem("trial", f"a trial could not be prepared: {error}", "Fix the problems above first.")
