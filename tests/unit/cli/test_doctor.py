"""Each check of `autofit doctor`, good and bad: status, subject, numbers and the command of the remedy."""

import importlib.metadata
import io
import json
import os
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest
from packaging.requirements import Requirement
from rich.console import Console
from typer.testing import CliRunner

from autofit.backends.protocol import backend_name
from autofit.cli import app
from autofit.cli.doctor import command, resources, smoke_trial, software
from autofit.cli.findings import Finding, Status, ok, problem, warning
from autofit.cli.verify import checks
from autofit.errors import TrialProcessError, UsageError
from autofit.machine import verified
from autofit.machine.gpus import UnreadDevice
from autofit.records.distribution import DISTRIBUTION, install_command, version_of
from autofit.records.events import Activity
from autofit.records.machine import Device, Machine
from autofit.records.states import Outcome
from autofit.records.trial import Evidence, Measurement

RUN = CliRunner()
GIB, MIB = 2**30, 2**20
OK, WARNING, PROBLEM = Status.OK, Status.WARNING, Status.PROBLEM
HERE = Machine("Linux", "3.11", "some CPU", 4, 16 * GIB, 12 * GIB)
GPU = Device(0, "NVIDIA T4", "GPU-1", 16 * GIB, 15 * GIB)
UNREAD = UnreadDevice(1, "NVIDIA GB10", "GPU-2", str(pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)))
REQUIREMENTS = ["keras<4,>=3.8", "tensorflow<3,>=2.18", "numpy<3,>=1.26"]
INSTALLED = {DISTRIBUTION: "0.1.0", "keras": "3.15.1", "tensorflow": "2.21.0", "numpy": "2.4.6"}


def expect(finding, status, facts="", remedy=""):
    """A finding of that status, with these facts (split at |) in its detail, and a remedy if and only if it needs one."""
    assert finding.status is status, finding
    for fact in facts.split("|"):
        assert fact in finding.detail, finding
    assert (finding.remedy is None) == (status is OK), finding
    assert remedy in (finding.remedy or "")
    if finding.remedy:
        assert finding.remedy.endswith("."), finding


def libraries(changed=None, providers=None):
    return list(software.libraries({**INSTALLED, **(changed or {})}.get, REQUIREMENTS, providers or {}))


@pytest.mark.parametrize(
    ("system", "status", "remedy"),
    [("Linux", OK, ""), ("Darwin", OK, ""), ("Windows", PROBLEM, f"wsl --install, then {install_command()}")],
)
def test_the_platform(system, status, remedy):
    expect(software.platform(system, "6.1", "x86_64", "3.11.7"), status, f"{system} 6.1|x86_64|3.11.7", remedy)


def test_good_libraries_are_one_finding():
    (finding,) = libraries()
    expect(finding, OK, "tensorflow 2.21.0|keras 3.15.1|numpy 2.4.6")


@pytest.mark.parametrize(
    ("changed", "detail", "remedy"),
    [
        ({"keras": "3.6.0"}, "3.6.0|<4,>=3.8", "pip install 'keras<4,>=3.8'"),
        ({"keras": "4.0"}, "4.0|<4,>=3.8", "pip install 'keras<4,>=3.8'"),
        ({"tensorflow": "2.15.0"}, "2.15.0|<3,>=2.18", "'tensorflow<3,>=2.18'"),
        ({"keras": None}, "none|<4,>=3.8", "pip install 'keras<4,>=3.8'"),
    ],
)
def test_versions_of_keras_and_tensorflow_that_are_not_supported(changed, detail, remedy):
    (name,) = changed
    _, finding = libraries(changed)
    assert finding.subject == name
    expect(finding, PROBLEM, detail, remedy)


def test_keras_on_another_backend_does_without_tensorflow():
    assert [finding.status for finding in libraries({"tensorflow": None})] == [OK]


def test_other_requirements_are_left_to_pip():
    assert [finding.status for finding in libraries({"numpy": "1.0"})] == [OK]
    assert {"keras", "tensorflow"} <= {Requirement(text).name for text in software.requirements()}


def test_distributions_that_overwrite_each_other():
    _, finding = libraries(providers={"tensorflow": ["tensorflow", "tensorflow-cpu"], "keras": ["keras", "keras"]})
    assert finding.subject == "tensorflow"
    remedy = "pip uninstall -y tensorflow tensorflow-cpu, then pip install tensorflow"
    expect(finding, WARNING, "tensorflow-cpu", remedy)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install a distribution with only metadata and a package `autofit`: installed(name)."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(name):
        folder = tmp_path / f"{name.replace('-', '_')}-9.9.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9\n")
        (folder / "top_level.txt").write_text("autofit\n")

    return install


def test_the_other_project_with_the_same_import_name_is_reported(installed):
    installed(DISTRIBUTION)
    installed("autofit")
    providers = importlib.metadata.packages_distributions()
    assert {DISTRIBUTION, "autofit"} <= set(providers["autofit"])
    (finding,) = (f for f in software.libraries(version_of, [], providers) if f.subject == "autofit")
    remedy = f"pip uninstall -y autofit {DISTRIBUTION}, then {install_command()}."
    expect(finding, WARNING, f"autofit|{DISTRIBUTION}", remedy)


def test_autofit_alone_is_not_reported():
    for providers in ({}, {"autofit": [DISTRIBUTION]}, {"autofit": [DISTRIBUTION, DISTRIBUTION]}):
        assert [finding.subject for finding in libraries(providers=providers)] == ["libraries"]
    assert [finding.subject for finding in libraries({"autofit": "2026.1"})] == ["libraries", "autofit"]
    assert [finding.subject for finding in libraries(providers={"autofit": ["a-fork"]})] == ["libraries", "autofit"]


def test_the_backend_of_keras(tmp_path):
    (tmp_path / "keras.json").write_text('{"backend": "torch"}')
    file, versions = {"KERAS_HOME": str(tmp_path)}, {"tensorflow": "2.21.0", "jax": "0.10.2"}
    expect(software.keras_backend({"KERAS_BACKEND": "tensorflow", **file}, versions.get), OK, "tensorflow 2.21.0")
    expect(software.keras_backend({"KERAS_BACKEND": "jax", **file}, versions.get), OK, "jax 0.10.2")
    expect(software.keras_backend(file, versions.get), PROBLEM, "torch|keras.json|not installed", "[torch]")
    missing = software.keras_backend({"KERAS_BACKEND": "tensorflow"}, {}.get)
    expect(missing, PROBLEM, "tensorflow|not installed", "pip install tensorflow")
    remedy = "export KERAS_BACKEND=tensorflow"
    expect(software.keras_backend({"KERAS_BACKEND": "openvino"}, versions.get), PROBLEM, "openvino|KERAS_BACKEND", remedy)


@pytest.mark.parametrize(
    ("text", "backend"), [('{"backend": "jax"}', "jax"), *((text, "tensorflow") for text in ("{}", "[]", "{", None))]
)
def test_the_file_that_names_the_backend(text, backend, tmp_path):
    if text is not None:
        (tmp_path / "keras.json").write_text(text)
    assert backend_name({"KERAS_HOME": str(tmp_path)}) == backend
    assert backend_name({"KERAS_HOME": str(tmp_path), "KERAS_BACKEND": "torch"}) == "torch"


def test_an_allocator_that_ignores_the_limit():
    (finding,) = software.allocator({"TF_GPU_ALLOCATOR": "cuda_malloc_async"})
    expect(finding, WARNING, "TF_GPU_ALLOCATOR|cuda_malloc_async", "unset TF_GPU_ALLOCATOR")
    assert list(software.allocator({})) == []


def driver(visible=(), installed=(), selection=None, unusable=None):
    environment = {} if selection is None else {"CUDA_VISIBLE_DEVICES": selection}
    return list(resources.gpus(visible, installed, unusable, environment))


def test_a_machine_whose_gpus_are_not_used():
    (none,) = driver()
    expect(none, OK, "CPU")
    (unusable,) = driver(unusable="the driver does not answer")
    expect(unusable, PROBLEM, "does not answer", "nvidia-smi")
    (unread,) = driver((UNREAD,), (UNREAD,), unusable="the driver does not report its memory")
    expect(unread, PROBLEM, "its memory", "device: cpu")
    (hidden,) = driver((), (GPU,), "")
    expect(hidden, WARNING, "CUDA_VISIBLE_DEVICES| 1 ", "unset CUDA_VISIBLE_DEVICES")


def test_one_unusable_gpu_among_others():
    usable, unread = driver((GPU, UNREAD), (GPU, UNREAD), unusable="the driver does not report its memory")
    expect(usable, OK, "NVIDIA T4")
    assert unread.subject == "gpu:1"
    expect(unread, WARNING, f"NVIDIA GB10|{UNREAD.problem}", "device: gpu:N")


@pytest.mark.parametrize(
    ("free", "status", "remedy"), [(15 * GIB, OK, ""), (7 * GIB, WARNING, "End the"), (500 * MIB, PROBLEM, "device: gpu:N")]
)
@pytest.mark.parametrize("holder", ["python (pid 7) holds 9.00 GiB", None])
def test_memory_of_a_gpu_and_who_holds_it(free, status, remedy, holder):
    gpu = Device(1, "NVIDIA T4", "GPU-1", 16 * GIB, free, (holder,) if holder else ())
    (finding,) = driver((gpu,), (gpu,))
    assert finding.subject == "gpu:1"
    expect(finding, status, holder or "of 16.0 GiB free", remedy)
    assert ("nvidia-smi" in (finding.remedy or "")) == (holder is None and status is not OK)


def test_numbers_of_different_gpus_are_ambiguous():
    other = replace(GPU, index=1, name="an older GPU", uuid="GPU-2")

    def warnings(installed, **environment):
        findings = resources.gpus((GPU,), installed, None, environment)
        return [finding.remedy for finding in findings if finding.status is WARNING]

    assert "PCI_BUS_ID" in warnings((GPU, other), CUDA_VISIBLE_DEVICES="0")[0]
    assert warnings((GPU, other), CUDA_VISIBLE_DEVICES="0", CUDA_DEVICE_ORDER="PCI_BUS_ID") == []
    assert warnings((GPU, other), CUDA_VISIBLE_DEVICES=GPU.uuid) == []
    assert warnings((GPU, replace(GPU, index=1)), CUDA_VISIBLE_DEVICES="0") == []


def test_host_memory():
    def finding(available, total=16 * GIB):
        return resources.memory(replace(HERE, available_bytes=available), total)

    expect(finding(12 * GIB), OK, "12.0 GiB of 16.0 GiB")
    expect(finding(12 * GIB, 64 * GIB), OK, "12.0 GiB of 16.0 GiB|cgroup|64.0 GiB")
    expect(finding(5 * GIB), WARNING, "5.00 GiB")
    expect(finding(5 * GIB, 64 * GIB), WARNING, "cgroup", "docker run --memory")
    expect(finding(GIB // 2), PROBLEM, "512 MiB")


@pytest.mark.parametrize(
    ("size", "free", "status", "detail"),
    [
        (8 * GIB, 8 * GIB, OK, "8.00 GiB of 8.00 GiB"),
        (8 * GIB, 4096, PROBLEM, "4.00 KiB of 8.00 GiB"),
        (0, 0, PROBLEM, "missing"),
    ],
)
def test_shared_memory(size, free, status, detail):
    expect(resources.shared_memory(size, free, 1), status, detail, "" if status is OK else "--shm-size")


def test_shared_memory_for_several_gpus():
    expect(resources.shared_memory(GIB // 16, GIB // 16, 2), WARNING, "2 GPUs may fail in NCCL", "--shm-size")
    expect(resources.shared_memory(GIB, GIB, 2), OK, "free")


def test_cores():
    expect(resources.cores(8, None), OK, "8")
    expect(resources.cores(4, 4.0), OK, "4")
    expect(resources.cores(16, 2.5), WARNING, "16|2.5", "TF_NUM_INTRAOP_THREADS=2")


def folder(writable=True, free=GIB * 50, kind="ext4"):
    return resources.Folder(Path("/some/where"), writable, free, kind)


@pytest.mark.parametrize(
    ("reading", "status", "detail", "remedy"),
    [
        (folder(), OK, "50.0 GiB|/some/where", ""),
        (folder(free=MIB), WARNING, "1.00 MiB", "TMPDIR"),
        (folder(kind="tmpfs"), WARNING, "RAM", "/var/tmp"),
    ],
)
def test_the_temporary_folder(reading, status, detail, remedy, monkeypatch):
    monkeypatch.setattr(resources, "read_folder", lambda path: reading)
    expect(resources.temporary_files(), status, detail, remedy)


def test_the_folder_of_a_storage():
    expect(resources.storage(folder()), OK, "50.0 GiB|/some/where")
    expect(resources.storage(folder(writable=False)), PROBLEM, "/some/where", "--storage")
    expect(resources.storage(folder(free=MIB)), WARNING, "1.00 MiB", "--storage")
    expect(resources.storage(folder(kind="nfs4")), WARNING, "nfs4", "--storage")


def test_of_a_folder_that_does_not_exist_the_nearest_parent_is_read(tmp_path, monkeypatch):
    Mount = namedtuple("Mount", "mountpoint fstype")
    mounts = [Mount("/", "ext4"), Mount(str(tmp_path), "nfs4"), Mount(f"{tmp_path}-other", "tmpfs")]
    monkeypatch.setattr(resources.psutil, "disk_partitions", lambda **_: mounts)
    reading = resources.read_folder(tmp_path / "not" / "there")
    assert (reading.path, reading.writable, reading.file_system) == (tmp_path / "not" / "there", True, "nfs4")
    assert reading.free_bytes > 0
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert not resources.read_folder(tmp_path).writable


def test_no_temporary_folder_at_all(monkeypatch):
    def none():
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(resources.tempfile, "gettempdir", none)
    expect(resources.temporary_files(), PROBLEM, "no folder", "TMPDIR")


class FakeLauncher:
    """A launcher whose trial ends with an outcome, or whose server fails to start with an error."""

    def __init__(self, end, reason=""):
        self.end, self.spec, self.reason = end, None, reason

    def warm(self):
        if isinstance(self.end, Exception):
            raise self.end

    def run(self, spec):
        self.spec = spec
        yield "working"
        return Measurement(self.end, Evidence(self.reason or f"made to be {self.end.value}"))


@pytest.mark.parametrize(
    ("end", "forks", "status", "detail", "remedy"),
    [
        (Outcome.OK, True, OK, "fork|the CPU|0.0 s", ""),
        (Outcome.OK, False, OK, "interpreter|the CPU|0.0 s", ""),
        (Outcome.TIMEOUT, True, PROBLEM, "hung|made to be timeout", "--launch plain"),
        (Outcome.CRASHED, True, PROBLEM, "died|made to be crashed", "--launch plain"),
        (Outcome.CRASHED, False, PROBLEM, "made to be crashed", "--force-reinstall"),
        (Outcome.ERROR, True, PROBLEM, "made to be error", "--force-reinstall"),
        (Outcome.HOST_OOM, True, PROBLEM, "out of memory|made to be host_oom", "End "),
        (
            TrialProcessError("could not be:\n\nTraceback\nline\nboom"),
            True,
            PROBLEM,
            "could not be: boom",
            "--launch plain",
        ),
        (TrialProcessError("could not be:\n\nended by SIGILL\nlog"), True, PROBLEM, "SIGILL / log", "AVX"),
        (UsageError("TensorFlow does not see the GPU"), True, PROBLEM, "does not see the GPU", "autofit doctor"),
    ],
)
def test_a_trial(end, forks, status, detail, remedy):
    expect(smoke_trial.attempt(FakeLauncher(end), HERE, None, forks=forks), status, detail, remedy)


def test_a_trial_takes_little_of_a_gpu():
    launcher = FakeLauncher(Outcome.OK)
    expect(smoke_trial.attempt(launcher, HERE, Device(0, "T4", "u", 16 * GIB, GIB), forks=True), OK, "T4")
    assert launcher.spec.limits.device_bytes == GIB // 2


def test_a_trial_that_hangs_on_a_gpu_may_be_compiling():
    finding = smoke_trial.attempt(FakeLauncher(Outcome.TIMEOUT), HERE, GPU, forks=True)
    expect(finding, PROBLEM, "NVIDIA T4|made to be timeout", "autofit doctor")


def test_cuda_that_was_used_before_the_fork_is_named():
    error = "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, …"
    finding = smoke_trial.attempt(FakeLauncher(Outcome.ERROR, error), HERE, GPU, forks=True)
    expect(finding, PROBLEM, "a forked trial cannot use NVIDIA T4", "--launch plain")


def test_the_tiny_workload_can_be_pickled(tmp_path):
    smoke_trial.workload().save(tmp_path)
    assert any(tmp_path.iterdir())


@pytest.mark.parametrize("backend", ["tensorflow", "openvino"])
def test_all_checks_run_and_no_trial_that_cannot_work(backend, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", backend)
    monkeypatch.setattr(command, "_trials", lambda machine, device: [ok("trial", "done")])
    events = list(command.diagnose())
    subjects = [event.subject for event in events if isinstance(event, Finding)]
    assert subjects[:2] == ["platform", "libraries"]
    assert {"host memory", "cores", "temporary files", "storage", "keras backend"} <= set(subjects)
    assert ("trial" in subjects) == (backend == "tensorflow")
    assert any(isinstance(event, Activity) for event in events) == (backend == "tensorflow")


@pytest.mark.parametrize(
    ("device", "statuses", "subjects"),
    [
        (None, [OK], ["trial"]),
        (None, [PROBLEM], ["trial"]),
        (GPU, [OK, OK], ["trial", "XLA trial"]),
        (GPU, [OK, PROBLEM], ["trial", "XLA trial"]),
        (GPU, [PROBLEM], ["trial"]),
    ],
)
def test_a_good_trial_on_a_gpu_is_repeated_with_xla(device, statuses, subjects, monkeypatch):
    findings = iter([Finding(status, "trial", "detail", "remedy") for status in statuses])
    monkeypatch.setattr(smoke_trial, "attempt", lambda *_, forks: next(findings))
    assert [finding.subject for finding in command._trials(HERE, device)] == subjects


def test_an_unsupported_platform_ends_the_checks(monkeypatch):
    monkeypatch.setattr(command.platform, "system", lambda: "Windows")
    assert [event.subject for event in command.diagnose()] == ["platform"]


def test_the_trial_runs_on_the_cpu_if_no_gpu_is_usable(monkeypatch):
    monkeypatch.setattr(command, "survey", lambda *, hidden=False: (UNREAD,))
    monkeypatch.setattr(command, "_trials", lambda machine, device: [ok("trial", f"on {device}, of {machine.devices}")])
    assert ok("trial", "on None, of ()") in list(command.diagnose())


FINDINGS = (
    ok("cores", "2"),
    warning("storage", "cannot be locked: " + "words that fill the line " * 6, "Run [sudo] mount -a."),
    problem("tensorflow", "cannot be imported /" + "x" * 100, "Make it work."),
)


def test_findings_are_printed_within_80_columns_with_their_remedies():
    output = io.StringIO()
    console = Console(file=output, width=80, highlight=False)
    events = [FINDINGS[0], Activity("importing"), *FINDINGS[1:]]
    assert command.print_findings(events, console, Console(file=io.StringIO())) == FINDINGS
    text = output.getvalue()
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["ok", "cores", "2"]
    assert "→ Run [sudo] mount -a." in text
    assert text.count("x") == 100
    assert "importing" not in text
    assert "\x1b" not in text


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_current_activity_is_shown_on_a_terminal_only(is_terminal):
    output = io.StringIO()
    command.print_findings([Activity("importing"), FINDINGS[0]], None, Console(file=output, force_terminal=is_terminal))
    assert ("importing" in output.getvalue()) == is_terminal


@pytest.mark.parametrize(("count", "exit_code"), [(3, 1), (2, 0)])
def test_problems_set_the_exit_code_and_json_has_every_finding(count, exit_code, monkeypatch):
    monkeypatch.setattr(command, "diagnose", lambda storage: iter(FINDINGS[:count]))
    done = RUN.invoke(app, ["doctor"])
    assert done.exit_code == exit_code
    assert done.stdout.endswith(f"\n{exit_code} problem{'s' * (exit_code != 1)}, 1 warning.\n")
    done = RUN.invoke(app, ["doctor", "--json"])
    assert done.exit_code == exit_code
    report = json.loads(done.stdout)
    assert (report["version"], report["problems"], report["warnings"]) == (1, exit_code, 1)
    assert report["findings"][0] == {"subject": "cores", "status": "ok", "detail": "2", "remedy": None}
    assert len(report["findings"]) == count


def test_the_last_verify_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert verified.last() == ""
    verified.keep("2026-11-26, autofit 0.1.0, jax: all figures right")
    assert verified.last() == "2026-11-26, autofit 0.1.0, jax: all figures right"
    verified.path().write_bytes(b"\x1b[31mred\xff" * 100)
    assert len(verified.last()) <= 200 + 100
    assert "\x1b" not in verified.last()


@pytest.mark.parametrize(("rounds", "status"), [([1.0], OK), ([0.9, 1.0], OK), ([0.9, 0.9], PROBLEM)])
def test_one_configuration_that_differs_from_itself_is_compared_once_more(rounds, status):
    first, second = (300.0, 301.0, 299.0), (300.0, 299.0, 301.0)
    rates = [rate for ratio in rounds for a, b in zip(first, second, strict=True) for rate in (a * ratio, b)]

    class Played:
        launcher = SimpleNamespace(change=lambda workload: None)

        def again(self, **_):
            return Measurement(Outcome.OK, Evidence("finished"), samples_per_second=rates.pop(0))

    assert checks.CHECKS["A/A"](Played()).status is status
    assert rates == []


def test_verify_names_its_checks():
    ran = RUN.invoke(app, ["verify", "--only", "input rat"])
    assert ran.exit_code == 2
    assert "--only: there is no such key; did you mean input rate? Allowed here: input rate, step rate, A/A" in ran.output
