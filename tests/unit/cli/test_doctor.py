"""Each check of `autofit doctor`, good and bad: status, subject, numbers and the command of the remedy."""

import importlib.metadata
import io
import json
import os
import sys
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest
from rich.console import Console

from autofit.backends.keras_config import backend_name
from autofit.backends.tensorflow.probe import BackendReport, Probe, ProbeFailure, VisibleGpu
from autofit.cli.doctor import diagnose, folders, gpus, memory_checks, printing, processes, smoke_trial, software
from autofit.cli.doctor.findings import Finding, Status, ok, problem, warning
from autofit.errors import TrialProcessError, UsageError
from autofit.machine import host
from autofit.machine.gpus import UnreadDevice
from autofit.records.distribution import DISTRIBUTION, install_command
from autofit.records.events import Activity
from autofit.records.machine import Device, Machine
from autofit.records.states import Outcome
from autofit.records.trial import Evidence, Measurement

GIB, MIB = 2**30, 2**20
OK, WARNING, PROBLEM = Status.OK, Status.WARNING, Status.PROBLEM
HERE = Machine("Linux", "3.11", "some CPU", 4, 16 * GIB, 12 * GIB)
GPU = Device(0, "NVIDIA T4", "GPU-1", 16 * GIB, 15 * GIB)
SEEN_GPU = VisibleGpu("Tesla T4", (7, 5), False)
KERNELS = ("sm_60", "sm_70", "sm_80", "sm_89", "compute_90")
SEEN = BackendReport("2.21.0", "3.15.1", 2.0, True, KERNELS, (SEEN_GPU,))
BLIND = BackendReport("2.21.0", "3.15.1", 2.0, True, KERNELS, ())

WANTED = {
    DISTRIBUTION: [
        "keras<4,>=3.8",
        "tensorflow<3,>=2.18",
        "numpy<3,>=1.26",
        "pillow<14,>=10; extra == 'examples'",
        "colorama; sys_platform == 'nothing'",
    ],
    "tensorflow": ["protobuf<8.0.0,>=6.31.1", "nvidia-cublas-cu12; extra == 'and-cuda'"],
}
INSTALLED = {
    DISTRIBUTION: "0.1.0",
    "keras": "3.15.1",
    "tensorflow": "2.21.0",
    "numpy": "2.4.6",
    "protobuf": "7.36.2",
    "optuna": "5.0.0",
}


def expect(finding, status, facts="", remedy=""):
    """A finding of that status, with these facts (split at |) in its detail, and a remedy if and only if it needs one."""
    assert finding.status is status, finding
    for fact in facts.split("|"):
        assert fact in finding.detail, finding
    assert (finding.remedy is None) == (status is OK), finding
    assert remedy in (finding.remedy or "")
    if finding.remedy:
        assert finding.remedy.endswith("."), finding


def libraries(changed=None, wanted=WANTED, providers=None):
    installed = {**INSTALLED, **(changed or {})}
    return list(software.libraries(installed.get, lambda name: wanted.get(name, []), providers or {}))


@pytest.mark.parametrize(
    ("system", "release", "status", "detail", "remedy"),
    [
        ("Linux", "6.1", OK, "Linux 6.1|x86_64", ""),
        ("Linux", "5.15-microsoft-standard-WSL2", OK, "WSL", ""),
        ("Darwin", "24", OK, "Darwin 24", ""),
        ("Windows", "11", PROBLEM, "Windows 11", f"wsl --install, then {install_command()}"),
    ],
)
def test_the_platform(system, release, status, detail, remedy):
    expect(software.platform(system, release, "x86_64"), status, detail, remedy)


def test_python():
    expect(software.python("3.11.7", ">=3.10,<3.14"), OK, "3.11.7")
    expect(software.python("3.14.0", ">=3.10,<3.14"), PROBLEM, "3.14.0|>=3.10,<3.14")


def test_good_libraries_are_one_finding():
    (found,) = libraries()
    expect(found, OK, "tensorflow 2.21.0|keras 3.15.1|numpy 2.4.6")


@pytest.mark.parametrize(
    ("changed", "status", "detail", "remedy"),
    [
        ({"keras": "3.6.0"}, PROBLEM, "3.6.0|hangs", "pip install 'keras<4,>=3.8'"),
        ({"keras": "4.0"}, PROBLEM, f"4.0|{DISTRIBUTION}|<4,>=3.8", "pip install 'keras<4,>=3.8'"),
        ({"tensorflow": "2.17.1"}, PROBLEM, "2.17.1|NumPy 1", "'tensorflow<3,>=2.18'"),
        ({"numpy": None}, PROBLEM, f"not installed|{DISTRIBUTION}", "'numpy<3,>=1.26'"),
        ({"protobuf": "5.29"}, WARNING, "5.29|tensorflow|>=6.31.1", "pip install 'protobuf"),
    ],
)
def test_versions_that_misbehave(changed, status, detail, remedy):
    (name,) = changed
    _, found = libraries(changed)
    assert found.subject == name
    expect(found, status, detail, remedy)


def test_a_version_that_is_too_new_is_not_told_the_reason_of_an_old_one():
    assert "hangs" not in libraries({"keras": "4.0"})[1].detail


def test_two_distributions_that_overwrite_one_another():
    _, found = libraries(providers={"tensorflow": ["tensorflow", "tensorflow-cpu"], "keras": ["keras", "keras"]})
    assert found.subject == "tensorflow"
    expect(found, WARNING, "tensorflow-cpu", "pip uninstall -y tensorflow tensorflow-cpu, then pip install tensorflow")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install a distribution that has nothing but metadata and a package `autofit`: installed(name, version)."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(name, version):
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Python: >=3.9\n"
        )
        (folder / "RECORD").write_text("autofit/__init__.py,,\n")

    return install


def test_the_other_project_with_the_same_import_name_is_reported(installed):
    installed(DISTRIBUTION, "9.9")
    assert (software.version_of(DISTRIBUTION), software.supported_python()) == ("9.9", ">=3.9")
    installed("autofit", "2026.1")
    providers = importlib.metadata.packages_distributions()
    assert {DISTRIBUTION, "autofit"} <= set(providers["autofit"])
    (finding,) = (f for f in software.libraries(software.version_of, lambda _: [], providers) if f.subject == "autofit")
    remedy = f"pip uninstall -y autofit {DISTRIBUTION}, then {install_command()}."
    expect(finding, WARNING, f"autofit|{DISTRIBUTION}", remedy)


def test_autofit_alone_is_not_reported():
    for providers in ({}, {"autofit": [DISTRIBUTION]}, {"autofit": [DISTRIBUTION, DISTRIBUTION]}):
        assert [finding.subject for finding in libraries(providers=providers)] == ["libraries"]
    assert [finding.subject for finding in libraries({"autofit": "2026.1"})] == ["libraries", "autofit"]
    assert [finding.subject for finding in libraries(providers={"autofit": ["a-fork"]})] == ["libraries", "autofit"]


@pytest.mark.parametrize(
    ("asked", "tf_keras", "status", "detail"),
    [
        ("1", None, PROBLEM, "not installed"),
        ("1", "2.19.0", PROBLEM, "2.19.0|2.21.0"),
        ("0", "2.19.0", WARNING, "2.19.0|2.21.0"),
        ("true", "2.21.1", OK, "Keras 2"),
    ],
)
def test_tf_keras(asked, tf_keras, status, detail):
    found = software.legacy_keras({"TF_USE_LEGACY_KERAS": asked}, "2.21.0", tf_keras)
    expect(found, status, detail, "" if status is OK else "pip install 'tf_keras~=2.21.0'")


def test_tf_keras_that_nobody_asks_for():
    assert software.legacy_keras({}, "2.21.0", None) is None
    assert software.legacy_keras({}, "2.21.0", "2.21.0") is None


def test_the_backend_of_keras(tmp_path):
    (tmp_path / "keras.json").write_text('{"backend": "torch"}')
    file, versions = {"KERAS_HOME": str(tmp_path)}, {"tensorflow": "2.21.0", "jax": "0.10.2"}
    expect(software.keras_backend({"KERAS_BACKEND": "tensorflow", **file}, versions.get), OK, "tensorflow 2.21.0")
    expect(software.keras_backend({"KERAS_BACKEND": "jax", **file}, versions.get), OK, "jax 0.10.2")
    expect(software.keras_backend(file, versions.get), PROBLEM, "torch|keras.json|not installed", "[torch]")
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


@pytest.mark.parametrize(
    ("name", "value", "status", "detail", "remedy"),
    [
        ("TF_FORCE_GPU_ALLOW_GROWTH", "1", WARNING, "true|false", "unset TF_FORCE_GPU_ALLOW_GROWTH"),
        ("TF_GPU_ALLOCATOR", "cuda_malloc_async", WARNING, "no limit of device memory", "unset TF_GPU_ALLOCATOR"),
        ("XLA_FLAGS", "--xla_dump_to=/d", WARNING, "--xla_dump_to=/d", "unset XLA_FLAGS"),
        ("XLA_FLAGS", "--xla_gpu_autotune_level=0", OK, "--xla_gpu_autotune_level=0", ""),
        ("TF_ENABLE_ONEDNN_OPTS", "0", OK, "CPU", ""),
    ],
)
def test_environment_variables(name, value, status, detail, remedy):
    (found,) = software.variables({name: value})
    expect(found, status, detail, remedy)
    assert f"{name}={value}" in found.detail


def test_an_environment_that_says_nothing_is_not_spoken_of():
    assert list(software.variables({"TF_FORCE_GPU_ALLOW_GROWTH": "true", "PATH": "/bin"})) == []


def reported(visible=(), everything=(), named=None, plugged_in=False):
    environment = {} if named is None else {"CUDA_VISIBLE_DEVICES": named}
    return list(gpus.driver(visible, everything, environment, plugged_in=plugged_in))


def test_gpus_that_are_not_to_be_had():
    (none,) = reported()
    expect(none, OK, "CPU")
    (undriven,) = reported(plugged_in=True)
    expect(undriven, WARNING, "driver", "nvidia-smi")
    (hidden,) = reported((), (GPU,), "")
    expect(hidden, WARNING, "CUDA_VISIBLE_DEVICES| 1 ", "unset CUDA_VISIBLE_DEVICES")
    (sliced,) = reported((), (GPU,), "MIG-4d2e")
    expect(sliced, PROBLEM, "MIG-4d2e", "device: cpu")
    assert [found.status for found in gpus.tensorflow(SEEN, (), {"CUDA_VISIBLE_DEVICES": "MIG-4d2e"})] == [OK]
    some, _ = reported((GPU,), (GPU, GPU), "0")
    expect(some, OK, "1 of 2")


@pytest.mark.parametrize(
    ("free", "status", "remedy"), [(15 * GIB, OK, ""), (7 * GIB, WARNING, "End the"), (500 * MIB, PROBLEM, "device: gpu:N")]
)
@pytest.mark.parametrize("holder", ["python (pid 7) holds 9.00 GiB", None])
def test_memory_of_a_gpu_and_who_holds_it(free, status, remedy, holder):
    gpu = Device(1, "NVIDIA T4", "GPU-1", 16 * GIB, free, (holder,) if holder else ())
    (found,) = reported((gpu,), (gpu,))
    assert found.subject == "gpu:1"
    expect(found, status, holder or "of 16.0 GiB free", remedy)
    assert ("nvidia-smi" in (found.remedy or "")) == (holder is None and status is not OK)


@pytest.mark.parametrize(
    ("code", "remedy"),
    [(3, "device: gpu:N"), (4, "MIG"), (15, "Restart"), (999, "nvidia-smi")],
)
def test_a_gpu_that_the_driver_does_not_tell_of(code, remedy):
    unread = UnreadDevice(0, "NVIDIA GB10", "GPU-1", str(pynvml.NVMLError(code)), code)
    (found,) = reported((unread,), (unread,))
    assert found.subject == "gpu:0"
    expect(found, WARNING, f"NVIDIA GB10|{unread.problem}", remedy)
    assert WARNING not in [finding.status for finding in gpus.tensorflow(SEEN, (unread,), {})]


def test_a_gpu_that_the_driver_does_not_tell_of_keeps_nothing_from_being_looked_at(monkeypatch):
    unread = UnreadDevice(0, "NVIDIA GB10", "GPU-1", "Not Supported", 3)
    monkeypatch.setattr(diagnose, "survey", lambda *, hidden=False: (unread,))
    monkeypatch.setattr(diagnose, "Probe", lambda: Told(SEEN))
    monkeypatch.setattr(diagnose, "_trials", lambda here, device: [ok("trial", f"on {device}, of {here.devices}")])
    assert ok("trial", "on None, of ()") in list(diagnose.diagnose())


def test_numbers_of_gpus_that_are_not_alike_are_ambiguous():
    other = replace(GPU, index=1, name="an older GPU", uuid="GPU-2")

    def warned(everything, **environment):
        found = gpus.driver((GPU,), everything, environment, plugged_in=True)
        return [finding.remedy for finding in found if finding.status is WARNING]

    assert "PCI_BUS_ID" in warned((GPU, other), CUDA_VISIBLE_DEVICES="0")[0]
    assert warned((GPU, other), CUDA_VISIBLE_DEVICES="0", CUDA_DEVICE_ORDER="PCI_BUS_ID") == []
    assert warned((GPU, other), CUDA_VISIBLE_DEVICES=GPU.uuid) == []
    assert warned((GPU, replace(GPU, index=1)), CUDA_VISIBLE_DEVICES="0") == []


def test_a_card_on_the_bus(tmp_path):
    assert not gpus.on_bus(tmp_path)
    for name, vendor, kind in (("a", "0x8086", "0x030000"), ("b", "0x10de", "0x040300")):  # graphics, and NVIDIA's sound
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(vendor + "\n")
        (tmp_path / name / "class").write_text(kind + "\n")
    (tmp_path / "c").mkdir()
    assert not gpus.on_bus(tmp_path)
    (tmp_path / "c" / "vendor").write_text("0x10de\n")
    (tmp_path / "c" / "class").write_text("0x030200\n")
    assert gpus.on_bus(tmp_path)


def test_what_tensorflow_sees():
    (on_cpu,) = gpus.tensorflow(BLIND, (), {})
    expect(on_cpu, OK, "2.21.0|3.15.1|2.0 s|with CUDA|0 GPUs")
    first, growth = gpus.tensorflow(SEEN, (GPU,), {})
    expect(first, OK, "1 GPU")
    assert growth.subject == "memory growth"
    expect(growth, OK, "off")
    *_, growth = gpus.tensorflow(SEEN, (GPU,), {"TF_FORCE_GPU_ALLOW_GROWTH": "true"})
    expect(growth, OK, "on|TF_FORCE_GPU_ALLOW_GROWTH")
    _, other = gpus.tensorflow(SEEN, (), {})
    expect(other, WARNING, "Tesla T4", "device: cpu")


@pytest.mark.parametrize(
    ("built_with_cuda", "log", "detail", "remedy"),
    [
        (False, "", "no CUDA", f"pip uninstall tensorflow-cpu. Run {install_command('gpu')}"),
        (True, "W gpu_device.cc] Cannot dlopen some GPU libraries. …", "Cannot dlopen", install_command("gpu")),
        (
            True,
            "E x.cc:1] CUDA driver version is insufficient …",
            "driver version is insufficient",
            "Update the NVIDIA driver",
        ),
        (True, "E x.cc:52] failed call to cuInit: INTERNAL: UNKNOWN ERROR (303)", "missing", install_command("gpu")),
        (True, "failed call to cuInit: CUDA_ERROR_UNKNOWN: x", "CUDA_ERROR_UNKNOWN", "Update the NVIDIA driver"),
        (True, "another line", "no GPU", install_command("gpu")),
    ],
)
def test_a_gpu_that_tensorflow_does_not_see(built_with_cuda, log, detail, remedy):
    blind = BackendReport("2.21.0", "3.15.1", 2.0, built_with_cuda, KERNELS, (), log)
    _, found = gpus.tensorflow(blind, (GPU,), {})
    expect(found, PROBLEM, detail, remedy)


@pytest.mark.parametrize(("capability", "is_compiled"), [((8, 0), False), ((8, 6), False), ((9, 0), True), ((7, 5), True)])
def test_a_gpu_whose_code_cuda_must_compile_first_is_said(capability, is_compiled):
    kernels = ("sm_80", "sm_89", "compute_90")
    report = BackendReport("2.21.0", "3", 2.0, True, kernels, (VisibleGpu("some GPU", capability, None),))
    findings = [finding.detail for finding in gpus.tensorflow(report, (GPU,), {})]
    assert any("CUDA_CACHE_PATH" in detail for detail in findings) is is_compiled


@pytest.mark.parametrize(("capability", "told"), [((7, 5), False), ((9, 0), False), ((12, 0), True), (None, False)])
def test_a_gpu_that_is_newer_than_tensorflow(capability, told):
    newer = BackendReport("2.21.0", "3", 2.0, True, KERNELS, (VisibleGpu("RTX 5090", capability, None),))
    found = [finding for finding in gpus.tensorflow(newer, (GPU,), {}) if finding.status is not OK]
    assert len(found) == told
    if told:
        expect(found[0], WARNING, "RTX 5090|12.0")


def test_tensorflow_that_cannot_be_imported():
    (found,) = gpus.tensorflow(ProbeFailure("died by SIGSEGV", "SIGSEGV", ("one", "two")), (), {})
    expect(found, PROBLEM, "SIGSEGV|one / two", install_command())
    (found,) = gpus.tensorflow(ProbeFailure("died by SIGILL", "SIGILL", ()), (), {})
    expect(found, PROBLEM, "SIGILL", "AVX")


def looked(program, seconds=20.0):
    with Probe([sys.executable, "-c", program]) as look:
        return look.result(seconds)


def test_a_look_that_crashes_hangs_or_babbles_is_said():
    crashed = looked("import os, sys; print('on the way', file=sys.stderr, flush=True); os.abort()")
    assert (crashed.how, crashed.signal, crashed.last_lines) == ("died by SIGABRT", "SIGABRT", ("on the way",))
    raised = looked("raise ImportError('no such symbol')")
    assert (raised.how, raised.last_lines) == (
        "exited with status 1",
        ('File "<string>", line 1, in <module>', "ImportError: no such symbol"),
    )
    hung = looked("import sys, time; print('waiting', file=sys.stderr, flush=True); time.sleep(60)", 1.0)
    assert (hung.signal, hung.last_lines) == (None, ("waiting",))
    assert "1 s" in hung.how
    assert isinstance(looked("print('hello')"), ProbeFailure)


def test_a_look_left_early_is_ended():
    with Probe([sys.executable, "-c", "import time; time.sleep(60)"]) as look:
        assert look._process.poll() is None
    assert look._process.returncode == -9


def test_what_is_printed_on_the_way_does_not_spoil_a_sight():
    told = json.dumps(
        {**vars(BLIND), "gpus": [{"name": "T4", "compute_capability": [7, 5], "memory_growth": None}]}, default=list
    )
    seen = looked(f"import sys; print('banner'); print('log', file=sys.stderr); print({told!r})")
    assert (seen.gpus, seen.log) == ((VisibleGpu("T4", (7, 5), None),), "log\n")


def host_finding(available, total=16 * GIB, holders=()):
    here = Machine("Linux", "3.11", "some CPU", 4, 16 * GIB, available)
    return memory_checks.host(here, total, lambda: holders)


def test_host_memory():
    holders = [memory_checks.Holder("chrome", 7, 9 * GIB)]
    expect(host_finding(12 * GIB), OK, "12.0 GiB of 16.0 GiB")
    expect(host_finding(12 * GIB, 64 * GIB), OK, "12.0 GiB of 16.0 GiB|cgroup|64.0 GiB")
    expect(host_finding(5 * GIB, holders=holders), WARNING, "5.00 GiB|chrome (pid 7) 9.00 GiB")
    expect(host_finding(5 * GIB, 64 * GIB), WARNING, "cgroup", "docker run --memory")
    expect(host_finding(GIB // 2, holders=holders), PROBLEM, "512 MiB|chrome (pid 7)")


def test_who_holds_the_most_memory_here():
    found = memory_checks.holders()
    assert 1 <= len(found) <= 3
    assert [holder.size_bytes for holder in found] == sorted((holder.size_bytes for holder in found), reverse=True)
    assert all(holder.name for holder in found)


def test_swap():
    expect(memory_checks.swap(0, 0, 16 * GIB), OK)
    expect(memory_checks.swap(100 * MIB, 8 * GIB, 16 * GIB), OK, "100 MiB of 8.00 GiB")
    expect(memory_checks.swap(2 * GIB, 8 * GIB, 16 * GIB), WARNING, "2.00 GiB of 8.00 GiB", "swapoff")
    used, there = memory_checks.swap_use()
    assert 0 <= used <= there


@pytest.mark.parametrize(
    ("size", "free", "status", "detail"),
    [
        (8 * GIB, 8 * GIB, OK, "8.00 GiB of 8.00 GiB"),
        (64 * MIB, 64 * MIB, OK, "64.0 MiB of 64.0 MiB|container"),
        (8 * GIB, 4096, PROBLEM, "4.00 KiB of 8.00 GiB"),
        (0, 0, PROBLEM, "missing"),
    ],
)
def test_shared_memory(size, free, status, detail):
    expect(memory_checks.shared(size, free, expected=True), status, detail, "" if status is OK else "--shm-size")
    assert memory_checks.shared(size, free, expected=False) is None


def test_cores():
    expect(processes.cores(8, 8, None), OK, "8")
    expect(processes.cores(16, 4, 4.0), OK, "4 of 16")
    expect(processes.cores(16, 16, 2.5), WARNING, "16|2.5", "TF_NUM_INTRAOP_THREADS=2")
    expect(processes.cores(16, 1, None), WARNING, "1 of 16", "taskset")


def test_whether_the_kernels_kills_are_seen():
    expect(processes.oom_kills(visible=True, system="linux"), OK)
    expect(processes.oom_kills(visible=False, system="linux"), WARNING, "not visible", "systemd-run")
    assert processes.oom_kills(visible=False, system="darwin") is None


@pytest.mark.parametrize(
    ("limits", "subject", "facts", "remedy"),
    [
        ((256, None, None, None), "open files", "256", "ulimit -n"),
        ((None, 100, None, None), "processes", "100", "ulimit -u"),
        ((None, None, 8 * GIB, None), "address space", "8.00 GiB", "ulimit -v unlimited"),
        ((None, None, None, (90, 100)), "processes", "90|100", "--pids-limit"),
    ],
)
def test_low_limits(limits, subject, facts, remedy):
    (found,) = processes.limits(*limits)
    assert found.subject == subject
    expect(found, WARNING, facts, remedy)


def test_ample_limits_are_not_spoken_of():
    assert list(processes.limits(65536, None, None, (100, 30000))) == []
    assert len(processes.resource_limits()) == 3


def folder(writable=True, free=GIB * 50, kind="ext4"):
    return folders.Folder(Path("/some/where"), writable, free, kind)


def test_the_temporary_folder():
    expect(folders.temporary_files(folder()), OK, "50.0 GiB|/some/where")
    expect(folders.temporary_files(None), PROBLEM, "no folder", "TMPDIR")
    expect(folders.temporary_files(folder(writable=False)), PROBLEM, "/some/where", "TMPDIR")
    expect(folders.temporary_files(folder(free=MIB)), WARNING, "1.00 MiB", "TMPDIR")
    expect(folders.temporary_files(folder(kind="tmpfs")), WARNING, "RAM", "/var/tmp")


def test_the_folder_of_the_trials():
    expect(folders.storage(folder()), OK, "50.0 GiB|/some/where")
    expect(folders.storage(folder(writable=False)), PROBLEM, "/some/where", "--storage")
    expect(folders.storage(folder(free=MIB)), WARNING, "1.00 MiB", "--storage")
    expect(folders.storage(folder(kind="nfs4")), WARNING, "nfs4", "--storage")


def test_a_folder_that_is_not_there_yet_is_that_above_it(tmp_path, monkeypatch):
    Mount = namedtuple("Mount", "mountpoint fstype")
    mounts = [Mount("/", "ext4"), Mount(str(tmp_path), "nfs4"), Mount(f"{tmp_path}-other", "tmpfs")]
    monkeypatch.setattr(folders.psutil, "disk_partitions", lambda **_: mounts)
    found = folders.read(tmp_path / "not" / "there")
    assert (found.path, found.writable, found.file_system) == (tmp_path / "not" / "there", True, "nfs4")
    assert found.free_bytes > 0
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert not folders.read(tmp_path).writable


def test_no_temporary_folder_at_all(monkeypatch):
    def none():
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(folders.tempfile, "gettempdir", none)
    assert folders.read_temporary() is None


class Served:
    """A launcher whose trial ends as it is told."""

    def __init__(self, ended):
        self.ended, self.spec = ended, None

    def warm(self):
        if isinstance(self.ended, Exception):
            raise self.ended

    def run(self, spec):
        self.spec = spec
        yield "working"
        return Measurement(self.ended, Evidence(f"made to be {self.ended.value}"))


@pytest.mark.parametrize(
    ("ended", "forks", "status", "detail", "remedy"),
    [
        (Outcome.OK, True, OK, "fork|the CPU|0.0 s", ""),
        (Outcome.OK, False, OK, "interpreter|the CPU|0.0 s", ""),
        (Outcome.TIMEOUT, True, PROBLEM, "hung|made to be timeout", "--launch plain"),
        (Outcome.CRASHED, True, PROBLEM, "died|made to be crashed", "--launch plain"),
        (Outcome.CRASHED, False, PROBLEM, "made to be crashed", "--force-reinstall"),
        (Outcome.ERROR, True, PROBLEM, "made to be error", "--force-reinstall"),
        (Outcome.HOST_OOM, True, PROBLEM, "out of memory|made to be host_oom", "End "),
        (TrialProcessError("could not be:\n\nTraceback\nboom"), True, PROBLEM, "could not be: boom", "--launch plain"),
        (UsageError("one line"), True, PROBLEM, "one line", "--launch plain"),
    ],
)
def test_a_real_try(ended, forks, status, detail, remedy):
    expect(smoke_trial.attempt(Served(ended), HERE, None, forks=forks), status, detail, remedy)


def test_a_try_on_a_gpu_takes_little_of_it():
    launcher = Served(Outcome.OK)
    expect(smoke_trial.attempt(launcher, HERE, Device(0, "T4", "u", 16 * GIB, GIB), forks=True), OK, "T4")
    assert launcher.spec.limits.device_bytes == GIB // 2


def test_a_try_that_hangs_on_a_gpu_may_be_compiling():
    found = smoke_trial.attempt(Served(Outcome.TIMEOUT), HERE, GPU, forks=True)
    expect(found, PROBLEM, "NVIDIA T4|made to be timeout", "autofit doctor")


def test_the_tiny_workload_can_be_handed_over(tmp_path):
    smoke_trial.workload().save(tmp_path)
    assert any(tmp_path.iterdir())


@pytest.fixture
def cgroup(tmp_path, monkeypatch):
    """A cgroup tree of the test's own: write(path, text)."""
    monkeypatch.setattr(host, "_CGROUP_ROOT", tmp_path)
    monkeypatch.setattr(host, "_OWN_CGROUPS", tmp_path / "own")

    def write(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    return write


def test_cgroups_of_version_2(cgroup):
    cgroup("own", "0::/a/b\n")
    cgroup("a/b/cpu.max", "max 100000\n")
    assert host.cpu_quota() is None
    assert not host.counts_oom_kills()
    assert host.process_limit() is None
    cgroup("a/cpu.max", "150000 100000\n")
    cgroup("a/b/memory.events", "oom 1\noom_kill 3\n")
    cgroup("a/pids.max", "100\n")
    cgroup("a/pids.current", "7\n")
    cgroup("a/b/pids.max", "max\n")
    assert host.cpu_quota() == 1.5
    assert host.usable_cores() == min(2, host.visible_cores())
    assert host.counts_oom_kills()
    assert host.oom_kills() == 3
    assert host.process_limit() == (7, 100)


def test_cgroups_of_version_1(cgroup):
    cgroup("own", "4:memory:/a\n2:cpu,cpuacct:/a\n")
    cgroup("cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n")
    cgroup("cpu,cpuacct/a/cpu.cfs_period_us", "100000\n")
    cgroup("memory/a/memory.oom_control", "oom_kill 0\n")
    assert host.cpu_quota() is None
    assert host.counts_oom_kills()
    assert host.oom_kills() == 0
    cgroup("cpu,cpuacct/a/cpu.cfs_quota_us", "50000\n")
    assert host.cpu_quota() == 0.5
    assert host.usable_cores() == 1


class Told:
    """A look that ends as it is told, and remembers that it was left."""

    left = False

    def __init__(self, told):
        self._told = told

    def __enter__(self):
        return self

    def __exit__(self, *_):
        Told.left = True

    def result(self, seconds):
        return self._told


@pytest.mark.parametrize(
    ("seen", "backend", "tried"),
    [
        (BLIND, "tensorflow", True),
        (ProbeFailure("died by SIGSEGV", "SIGSEGV", ()), "tensorflow", False),
        (BLIND, "openvino", False),
    ],
)
def test_all_is_looked_at_and_nothing_tried_that_cannot_work(seen, backend, tried, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", backend)
    monkeypatch.setattr(Told, "left", False)
    monkeypatch.setattr(diagnose, "Probe", lambda: Told(seen))
    monkeypatch.setattr(diagnose, "_trials", lambda here, device: [ok("trial", "done")])
    events = list(diagnose.diagnose())
    subjects = [event.subject for event in events if isinstance(event, Finding)]
    assert subjects[:3] == ["platform", "python", "libraries"]
    assert {"host memory", "cores", "temporary files", "storage", "keras backend"} <= set(subjects)
    assert ("tensorflow" in subjects) == (backend == "tensorflow")
    assert "start method" not in subjects
    assert ("trial" in subjects) == tried
    assert Told.left == (backend == "tensorflow")
    assert any(isinstance(event, Activity) for event in events) == (backend == "tensorflow")


def test_an_unsupported_platform_is_looked_at_no_further(monkeypatch):
    monkeypatch.setattr(diagnose.platform, "system", lambda: "Windows")
    assert [event.subject for event in diagnose.diagnose()] == ["platform", "python"]


FINDINGS = (
    ok("cores", "2"),
    warning("swap", "1.00 GiB of 2.00 GiB in use: " + "pages that come back " * 6, "Run [sudo] swapoff -a."),
    problem("tensorflow", "cannot be imported /" + "x" * 100, "Make it work."),
)


def drawn(events, **console):
    written = io.StringIO()
    found = printing.print_findings(
        events, Console(file=written, width=80, highlight=False, **console), Console(file=io.StringIO())
    )
    return written.getvalue(), found


def test_findings_are_drawn_within_80_columns_with_their_remedies():
    text, found = drawn([FINDINGS[0], Activity("importing"), *FINDINGS[1:]])
    assert found == FINDINGS
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["ok", "cores", "2"]
    assert "→ Run [sudo] swapoff -a." in text
    assert text.count("x") == 100
    assert "importing" not in text
    assert "\x1b" not in text


def test_what_is_being_done_is_said_on_a_terminal_only():
    for terminal in (True, False):
        written = io.StringIO()
        printing.print_findings([Activity("importing"), FINDINGS[0]], None, Console(file=written, force_terminal=terminal))
        assert ("importing" in written.getvalue()) == terminal


def test_problems_and_warnings_are_counted():
    assert printing.summary(FINDINGS) == "1 problem, 1 warning."
    assert printing.summary(FINDINGS[:1]) == "0 problems, 0 warnings."
    assert printing.has_problem(FINDINGS)
    assert not printing.has_problem(FINDINGS[:2])


def test_findings_as_json():
    told = json.loads(printing.as_json(FINDINGS))
    assert (told["version"], told["problems"], told["warnings"]) == (1, 1, 1)
    assert told["findings"][0] == {"subject": "cores", "status": "ok", "detail": "2", "remedy": None}
    assert told["findings"][2]["remedy"] == "Make it work."
