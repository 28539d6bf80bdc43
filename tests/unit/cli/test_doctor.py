"""What `autofit doctor` finds, good and bad; how findings are printed; and when `autofit verify` calls a figure wrong."""

import contextlib
import importlib
import json
import os
import tempfile
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from autofit.backends import named
from autofit.backends.protocol import backend_name
from autofit.cli import app
from autofit.cli.doctor import Finding, ok, problem, warning
from autofit.errors import StorageError, TrialProcessError, UsageError
from autofit.machine import host
from autofit.records.events import Activity
from autofit.records.machine import Device, Machine, Placement
from autofit.records.states import Outcome
from autofit.records.trial import Evidence, Measurement
from autofit.storage import connection
from tests.installed import needs

doctor, verify = (importlib.import_module(f"autofit.cli.{name}") for name in ("doctor", "verify"))
RUN = CliRunner()
GIB, MIB = 2**30, 2**20
HERE = Machine("Linux", "3.11", "some CPU", 4, 16 * GIB, 12 * GIB)
GPU = Device(1, "NVIDIA T4", "GPU-1", 16 * GIB, 15 * GIB)
SLOW = replace(GPU, index=0, name="NVIDIA T400", uuid="GPU-0", compute_capability=(7, 5), total_bytes=4 * GIB)
FAST = replace(GPU, name="NVIDIA A100", compute_capability=(8, 0))


def found(finding):
    assert (finding.remedy is None) == (finding.status == "ok"), finding
    assert finding.remedy is None or finding.remedy.endswith("."), finding
    return finding.status, f"{finding.detail} {finding.remedy}"


@pytest.mark.parametrize(
    ("finding", "status", "text"),
    [
        (lambda: doctor._shared_memory(8 * GIB, 4096), "problem", "--shm-size"),
        (lambda: doctor._shared_memory(0, 0), "problem", "missing"),
        (lambda: doctor._cores(16, 2.5), "warning", "quota of 2.5 is used up"),
        (lambda: next(doctor._on_gpus(HERE)), "ok", "trials run on the CPU"),
        (lambda: gpu_with(15 * GIB), "ok", "15.0 GiB of 16.0 GiB free on NVIDIA T4"),
        (lambda: gpu_with(7 * GIB, "python (pid 7)"), "warning", "python (pid 7) End these processes"),
        (lambda: gpu_with(500 * MIB), "problem", "End the processes that nvidia-smi lists"),
    ],
)
def test_a_fact(finding, status, text):
    found_status, found_text = found(finding())
    assert found_status == status
    assert text in found_text


def gpu_with(free_bytes, *holders):
    return next(doctor._on_gpus(replace(HERE, devices=(replace(GPU, free_bytes=free_bytes, held_by=holders),))))


def test_libraries_and_the_other_project_of_this_name(monkeypatch):
    versions = {"keras": "3.15.1", "jax": "0.10.2"}
    monkeypatch.setattr(doctor, "version_of", versions.get)
    assert doctor._software().detail.endswith(", jax 0.10.2, keras 3.15.1")
    versions["autofit"] = "2026.1"
    status, text = found(doctor._software())
    assert status == "warning"
    assert "pip uninstall -y autofit keras-autofit, then pip install keras-autofit." in text


@pytest.mark.parametrize(
    ("writable", "free", "kind", "status"),
    [
        (True, GIB, "ext4", "ok"),
        (True, MIB, "ext4", "warning"),
        (True, GIB, "nfs4", "warning"),
        (False, GIB, "ext4", "problem"),
    ],
)
def test_the_folder_of_a_storage_or_its_nearest_parent(tmp_path, monkeypatch, writable, free, kind, status):
    Mount = namedtuple("Mount", "mountpoint fstype")
    mounts = [Mount("/", "xfs"), Mount(str(tmp_path), kind), Mount(f"{tmp_path}-other", "tmpfs")]
    monkeypatch.setattr(doctor.psutil, "disk_partitions", lambda **_: mounts)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    monkeypatch.setattr(os, "access", lambda path, mode: writable)
    file = tmp_path / "not" / "there" / "trials.db"
    found_status, text = found(doctor._storage(str(file)))
    assert (found_status, str(file.parent) in text) == (status, True)
    assert doctor._storage(f"journal:{file}").status == {"nfs4": "ok"}.get(kind, status)  # made for network drives


def test_a_server_answers_or_not(monkeypatch):
    ends = iter([StorageError("no connection; start its server"), None])

    def attributes_of(storage, name):
        if (end := next(ends)) is not None:
            raise end

    monkeypatch.setattr(connection, "attributes_of", attributes_of)
    findings = [found(doctor._storage("postgresql://me:secret@host/db")) for _ in range(2)]
    assert [status for status, _ in findings] == ["problem", "ok"]
    assert "start its server" in findings[0][1]
    assert "secret" not in findings[1][1]


@pytest.mark.parametrize(
    ("text", "backend"), [('{"backend": "jax"}', "jax"), *((t, "tensorflow") for t in ("[]", "{", None))]
)
def test_the_file_that_names_the_backend(text, backend, tmp_path):
    if text is not None:
        (tmp_path / "keras.json").write_text(text)
    assert backend_name({"KERAS_HOME": str(tmp_path)}) == backend
    assert backend_name({"KERAS_HOME": str(tmp_path), "KERAS_BACKEND": "torch"}) == "torch"


def launcher_of(end):
    """A launcher whose trial ends with an outcome, or whose server fails to start with an error."""

    def run(spec):
        yield "working"
        assert spec.limits.device_bytes in (None, GIB)
        return Measurement(end, Evidence(f"made to be {end.value}"))

    def warm():
        if isinstance(end, Exception):
            raise end

    return lambda workload, placement, backend: contextlib.nullcontext(SimpleNamespace(warm=warm, run=run))


STARTED = TrialProcessError("could not be:\n\nTraceback\nline\nboom")


@pytest.mark.parametrize(
    ("end", "backend", "gpu", "text"),
    [
        (Outcome.OK, "tensorflow", None, "trained a tiny model on the CPU in 0.0 s"),
        (Outcome.OK, "jax", GPU, "trained a tiny model on the NVIDIA T4 in 0.0 s"),
        (Outcome.TIMEOUT, "torch", GPU, "Use --launch plain"),
        (Outcome.CRASHED, "jax", GPU, "Use --launch plain"),
        (Outcome.ERROR, "torch", None, "Run pip install --force-reinstall keras torch."),
        (Outcome.ERROR, "tensorflow", GPU, "Run pip install 'keras-autofit[gpu]' in a new environment"),
        (Outcome.HOST_OOM, "jax", None, "End the processes that hold the memory."),
        (STARTED, "jax", None, "did not start: could not be: / boom"),
        (UsageError("jax does not see the GPU"), "jax", GPU, "does not see the GPU Correct this"),
    ],
)
def test_a_trial(end, backend, gpu, text, monkeypatch):
    needs(backend)
    monkeypatch.setattr(doctor.sys, "platform", "linux")
    monkeypatch.setattr(doctor, "ProcessLauncher", launcher_of(end))
    status, found_text = found(doctor._trial(named(backend), HERE, Placement.on(*[gpu] if gpu else [])))
    assert text in found_text
    assert status == ("ok" if end is Outcome.OK else "problem")


@pytest.mark.parametrize(
    ("devices", "backend", "device"),
    [((), "tensorflow", "the CPU"), ((SLOW, FAST), "jax", "the NVIDIA A100"), ((), "openvino", None)],
)
def test_one_trial_runs_where_a_tune_would(devices, backend, device, monkeypatch):
    if backend != "openvino":  # which nobody needs
        needs(backend)
    monkeypatch.setenv("KERAS_BACKEND", backend)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(doctor.gpus, "nvidia_devices", lambda: devices)
    monkeypatch.setattr(doctor.host, "other_work", lambda: "other work uses 2.0 of 2 cores")
    monkeypatch.setattr(doctor, "ProcessLauncher", launcher_of(Outcome.OK))
    findings = [event for event in doctor.diagnose() if isinstance(event, Finding)]
    facts = ["software", "keras backend", *([f"gpu:{gpu.index}" for gpu in devices] or ["gpu"]), "host memory"]
    facts += [*(["/dev/shm"] if Path("/dev/shm").exists() else []), "cores", "load", "temporary files", "storage"]
    assert [finding.subject for finding in findings] == [*facts, *([] if device is None else ["trial"])]
    status = {finding.subject: finding.status for finding in findings}
    assert (status["load"], status["keras backend"]) == ("warning", "ok" if device else "problem")
    assert device is None or f"on {device} in" in findings[-1].detail


FINDINGS = (
    ok("cores", "2"),
    warning("storage", "cannot be locked: " + "words that fill the line " * 6, "Run [sudo] mount -a."),
    problem("trial", "cannot be imported /" + "x" * 100, "Make it work."),
)


@pytest.mark.parametrize(("count", "code"), [(3, 1), (2, 0)])
def test_findings_are_printed_and_problems_set_the_exit_code(count, code, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(doctor, "diagnose", lambda storage: iter([Activity("importing"), *FINDINGS[:count]]))
    done = RUN.invoke(app, ["doctor"])
    lines = done.stdout.splitlines()
    assert (done.exit_code, lines[0].split()) == (code, ["ok", "cores", "2"])
    assert max(map(len, lines)) <= 80
    assert "→ Run [sudo] mount -a." in done.stdout
    assert "importing" not in done.output
    assert lines[-1] == f"{code} problem{'s' * (code != 1)}, 1 warning."
    done = RUN.invoke(app, ["doctor", "--json"])
    report = json.loads(done.stdout)
    assert (done.exit_code, report["problems"], report["warnings"], len(report["findings"])) == (code, code, 1, count)
    assert report["findings"][0] == {"subject": "cores", "status": "ok", "detail": "2", "remedy": None}


def test_verify_names_its_figures_and_looks_at_the_load_first(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # of the lock: another autofit may run on this machine
    monkeypatch.setattr(host, "other_work", lambda **_: "other work uses 2.0 of 2 cores (python (pid 7) 1.9)")
    monkeypatch.setattr(verify, "ProcessLauncher", None)  # is not called
    done = RUN.invoke(app, ["verify"], env={"COLUMNS": "200"})
    assert done.exit_code == 3
    assert "cannot measure now: other work uses 2.0 of 2 cores (python (pid 7) 1.9)" in done.stdout
    done = RUN.invoke(app, ["verify", "--only", "input rat"])
    assert done.exit_code == 2
    assert "--only: unknown key; did you mean input rate?" in done.output


@pytest.mark.parametrize(
    ("error", "work", "status"),
    [
        (None, "", "ok"),
        (verify._WrongError("-10%"), "", "problem"),
        (verify._WrongError("-10%"), "other work uses 1.0 of 2 cores", "warning"),
    ],
)
def test_a_figure_is_not_called_wrong_while_others_use_the_machine(error, work, status, monkeypatch):
    def check(bench):
        if error is not None:
            raise error
        return "+1%"

    monkeypatch.setattr(host, "other_work", lambda: work)
    monkeypatch.setitem(verify.CHECKS, "made up", check)
    assert found(verify.measured("made up", None))[0] == status
