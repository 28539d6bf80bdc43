"""`autofit verify`: measure what is known, and print by how much the figures differ."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Annotated

import typer

from autofit import backends
from autofit.api import requests
from autofit.cli.exit import reporting_errors
from autofit.cli.findings import Finding, Status, findings_as_json, print_findings
from autofit.cli.options import Json
from autofit.cli.verify import checks, workloads
from autofit.errors import DeviceLockedError, UsageError
from autofit.machine import verified
from autofit.machine.device_lock import DeviceLock
from autofit.records.distribution import __version__
from autofit.records.events import Activity
from autofit.records.units import counted, format_seconds
from autofit.report.console.terminal import Terminal
from autofit.trial.launcher import ProcessLauncher
from autofit.tuning.settings import TuneSettings
from autofit.workload.arguments import no_such


def verify(
    as_json: Json = False,
    only: Annotated[
        list[str] | None, typer.Option(help=f"Measure only this: {', '.join(checks.CHECKS)}. May be repeated.")
    ] = None,
) -> None:
    """Measure what is known on this machine, and print by how much the figures of autofit differ from it.

    Takes a minute or two: pipelines and steps of known rates, known allocations, a configuration against itself, forced
    out-of-memory errors, a hang and a kill. The date and the result appear in reports and in autofit doctor.

    Exit codes: 0 all figures are right (what this machine cannot show is a warning); 1 at least one is wrong.
    """
    console, began = Terminal(), time.monotonic()
    subjects = tuple(checks.CHECKS)
    with reporting_errors():
        for subject in only or ():
            if subject not in subjects:
                raise UsageError(no_such(subject, subjects), key="--only")
        findings = print_findings(_findings(only or subjects), None if as_json else console, Terminal(stderr=True))
    wrong = [finding.subject for finding in findings if finding.status is Status.PROBLEM]
    not_shown = [finding.subject for finding in findings if finding.status is Status.WARNING]
    result = f"{counted(len(wrong), 'figure')} wrong ({', '.join(wrong)})" if wrong else "all figures right"
    result += f"; not shown: {', '.join(not_shown)}" if not_shown else ""
    when = f"{datetime.now():%Y-%m-%d}"
    if not only:
        verified.keep(f"{when}, autofit {__version__}, {backends.current().name}: {result}")
    if as_json:
        summary = {"date": when, "backend": backends.current().name, "wrong": wrong, "not_shown": not_shown}
        typer.echo(findings_as_json(findings, **summary))
    else:
        console.print(f"\n{result[:1].upper()}{result[1:]}; {format_seconds(time.monotonic() - began)}.")
    if wrong:
        raise typer.Exit(1)


def _findings(subjects: Iterable[str]) -> Iterator[Finding | Activity]:
    machine, placement = requests.detect(TuneSettings())
    with (
        DeviceLock(placement, "autofit verify") as lock,
        ProcessLauncher(workloads.workload(), placement) as launcher,
    ):
        if not lock.acquire():
            raise DeviceLockedError(placement.name, lock.holder())
        yield from checks.run(checks.Bench(launcher, machine, placement, backends.current()), subjects)
