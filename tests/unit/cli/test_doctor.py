"""What `autofit doctor` finds, good and bad.

How findings are printed; and when `autofit verify` calls a figure wrong.
"""

import contextlib
import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from autofit.backends.torch.backend import Torch
from autofit.cli import app
from autofit.cli.doctor import ok, problem, warning
from autofit.errors import TrialProcessError
from autofit.machine import host
from autofit.records.events import Activity
from autofit.records.machine import Device, Machine, Placement
from autofit.records.states import Outcome
from autofit.records.trial import Evidence, Measurement

doctor, verify = (
    importlib.import_module(f"autofit.cli.{name}") for name in ("doctor", "verify")
)
RUN = CliRunner()
GIB = 2**30
MIB = 2**20
HERE = Machine("Linux", "3.11", "some CPU", 4, 16 * GIB, 12 * GIB)
GPU = Device(1, "NVIDIA T4", "GPU-1", 16 * GIB, 15 * GIB)


def gpu_with(free_bytes, *holders):
    return next(
        doctor._on_gpus(
            replace(
                HERE, devices=(replace(GPU, free_bytes=free_bytes, held_by=holders),)
            )
        )
    )


@pytest.mark.parametrize(
    ("finding", "status"),
    [
        (lambda: doctor._shared_memory(8 * GIB, 4096), "problem"),
        (lambda: doctor._shared_memory(8 * GIB, GIB), "ok"),
        (lambda: doctor._cores(16, 2.5), "warning"),
        (
            lambda: doctor._folder(
                "storage", Path.home() / "no" / "such", 0, (), "Make room."
            ),
            "ok",
        ),
        (
            lambda: doctor._folder("storage", Path.home(), 2**80, (), "Make room."),
            "warning",
        ),
        (lambda: next(doctor._on_gpus(HERE)), "ok"),
        (lambda: gpu_with(15 * GIB), "ok"),
        (lambda: gpu_with(7 * GIB, "python (pid 7)"), "warning"),
        (lambda: gpu_with(500 * MIB), "problem"),
    ],
)
def test_a_fact_is_good_or_has_a_remedy(finding, status):
    assert finding().status == status
    assert (finding().remedy is None) == (status == "ok")


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA H200", "plain fits"),
        ("Tesla T4", "compile"),
        ("NVIDIA T400 4GB", "estimate --gpu"),
    ],
)
def test_what_is_known_of_a_gpu_is_said(name, known):
    (finding,) = doctor._on_gpus(replace(HERE, devices=(replace(GPU, name=name),)))
    assert known in finding.detail


@pytest.mark.parametrize(
    ("end", "status"),
    [
        (Outcome.OK, "ok"),
        (Outcome.CRASHED, "problem"),
        (Outcome.TIMEOUT, "problem"),
        (Outcome.ERROR, "problem"),
        (TrialProcessError("could not be:\n\nTraceback\nline\nboom"), "problem"),
    ],
)
def test_a_trial(end, status, monkeypatch):
    def warm():
        if isinstance(end, Exception):
            raise end

    def run(spec):
        return Measurement(end, Evidence(f"made to be {end.value}"))

    launcher = SimpleNamespace(warm=warm, run=run)
    monkeypatch.setattr(
        doctor,
        "ProcessLauncher",
        lambda *_, **options: contextlib.nullcontext(launcher),
    )
    finding = doctor._trial(Torch(), HERE, Placement.on(GPU))
    assert (finding.status, "[torch-gpu]" in (finding.remedy or "")) == (
        status,
        end is Outcome.ERROR,
    )
    assert ("may be compiling" in (finding.remedy or "")) == (end is Outcome.TIMEOUT)


def test_the_trial_runs_on_the_gpu_of_a_tune(monkeypatch):
    devices = (
        replace(GPU, name="T400", total_bytes=4 * GIB),
        replace(GPU, uuid="GPU-2", index=2),
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(doctor.gpus, "nvidia_devices", lambda: devices)
    monkeypatch.setattr(host, "other_work", lambda: None)
    monkeypatch.setattr(doctor, "_trial", lambda backend, machine, placement: placement)
    assert list(doctor.diagnose())[-1] == Placement.on(devices[1])


FINDINGS = (
    ok("cores", "2"),
    warning("storage", "cannot be locked", "Run [sudo] mount -a."),
    problem("trial", "x", "y."),
)


@pytest.mark.parametrize(("count", "code"), [(3, 1), (2, 0)])
def test_findings_are_printed_and_problems_set_the_exit_code(count, code, monkeypatch):
    monkeypatch.setattr(
        doctor, "diagnose", lambda: iter([Activity("importing"), *FINDINGS[:count]])
    )
    done = RUN.invoke(app, ["doctor"])
    assert done.exit_code == code
    assert "→ Run [sudo] mount -a." in done.stdout
    done = RUN.invoke(app, ["doctor", "--json"])
    report = json.loads(done.stdout)
    assert (
        done.exit_code,
        report["problems"],
        report["warnings"],
        len(report["findings"]),
    ) == (
        code,
        code,
        1,
        count,
    )


@pytest.mark.parametrize(
    ("error", "work", "status"),
    [(0, "", "ok"), (1, "", "problem"), (1, "2 cores", "warning")],
)
def test_a_figure_is_not_called_wrong_while_others_use_the_machine(
    error, work, status, monkeypatch
):
    monkeypatch.setattr(host, "other_work", lambda: work)
    monkeypatch.setitem(
        verify.CHECKS,
        "made up",
        lambda bench: verify._compare(1.0 + error, 1.0, 0.05, "x"),
    )
    assert verify.measure("made up", None).status == status
