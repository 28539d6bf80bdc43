"""Each check of `autofit doctor` in its good case and in every bad one, told by readings of the test's own."""

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

from autofit.backends.tensorflow.probe import BackendReport, Probe, ProbeFailure, VisibleGpu
from autofit.cli.doctor import diagnose, folders, gpus, memory, processes, show, smoke_trial, software
from autofit.cli.doctor.findings import Finding, Status, ok, problem, warning
from autofit.errors import TrialProcessError, UsageError
from autofit.machine import host
from autofit.machine.gpus import UnreadDevice
from autofit.records.events import Activity
from autofit.records.machine import Device, Machine
from autofit.records.trial import Evidence, Measurement, Outcome

GIB, MIB = 2**30, 2**20
OK, WARNING, PROBLEM = Status.OK, Status.WARNING, Status.PROBLEM
HERE = Machine("Linux", "3.11", "some CPU", 4, 16 * GIB, 12 * GIB)
GPU = Device(0, "NVIDIA T4", "GPU-1", 16 * GIB, 15 * GIB)
SEEN_GPU = VisibleGpu("Tesla T4", (7, 5), False)
KERNELS = ("sm_60", "sm_70", "sm_80", "sm_89", "compute_90")
SEEN = BackendReport("2.21.0", "3.15.1", 2.0, True, KERNELS, (SEEN_GPU,))
BLIND = BackendReport("2.21.0", "3.15.1", 2.0, True, KERNELS, ())

WANTED = {
    "autofit": [
        "keras<4,>=3.8",
        "tensorflow<3,>=2.18",
        "numpy<3,>=1.26",
        "pillow<14,>=10; extra == 'examples'",
        "colorama; sys_platform == 'nothing'",
    ],
    "tensorflow": ["protobuf<8.0.0,>=6.31.1", "nvidia-cublas-cu12; extra == 'and-cuda'"],
}
INSTALLED = {"keras": "3.15.1", "tensorflow": "2.21.0", "numpy": "2.4.6", "protobuf": "7.36.2", "optuna": "5.0.0"}


def expect(finding, status, detail, remedy=""):
    """A finding of that status whose detail and remedy hold these texts; a remedy is there if and only if it is needed."""
    assert finding.status is status, finding
    assert detail in finding.detail
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
        ("Linux", "6.1", OK, "Linux 6.1, x86_64", ""),
        ("Linux", "5.15-microsoft-standard-WSL2", OK, "on WSL", ""),
        ("Darwin", "24", OK, "an interpreter of its own", ""),
        ("Windows", "11", PROBLEM, "not supported", "wsl --install"),
    ],
)
def test_the_platform(system, release, status, detail, remedy):
    expect(software.platform(system, release, "x86_64"), status, detail, remedy)


def test_python():
    expect(software.python("3.11.7", ">=3.10,<3.14"), OK, "3.11.7")
    expect(software.python("3.14.0", ">=3.10,<3.14"), PROBLEM, "3.14.0 is outside", "a Python in that range")
    assert software.python_wanted()


def test_good_libraries_are_one_finding():
    (found,) = libraries()
    expect(found, OK, "tensorflow 2.21.0, keras 3.15.1, numpy 2.4.6")


@pytest.mark.parametrize(
    ("changed", "status", "detail", "remedy"),
    [
        ({"keras": "3.6.0"}, PROBLEM, "before 3.7 an epoch hangs", "pip install 'keras<4,>=3.8'"),
        ({"keras": "4.0"}, PROBLEM, "4.0 is outside what autofit supports (<4,>=3.8)", "pip install 'keras<4,>=3.8'"),
        ({"tensorflow": "2.17.1"}, PROBLEM, "before 2.18 it is built for NumPy 1", "'tensorflow<3,>=2.18'"),
        ({"numpy": None}, PROBLEM, "not installed; autofit needs it", "'numpy<3,>=1.26'"),
        ({"protobuf": "5.29"}, WARNING, "5.29 is outside what tensorflow supports", "pip install 'protobuf"),
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
    expect(found, WARNING, "tensorflow and by tensorflow-cpu", "pip uninstall -y tensorflow tensorflow-cpu")


@pytest.mark.parametrize(
    ("asked", "tf_keras", "status", "detail"),
    [
        ("1", None, PROBLEM, "not installed"),
        ("1", "2.19.0", PROBLEM, "2.19.0 belongs to TensorFlow 2.19"),
        ("0", "2.19.0", WARNING, "2.19.0 belongs to TensorFlow 2.19"),
        ("true", "2.21.1", OK, "tf.keras is Keras 2"),
    ],
)
def test_tf_keras(asked, tf_keras, status, detail):
    found = software.legacy_keras({"TF_USE_LEGACY_KERAS": asked}, "2.21.0", tf_keras)
    expect(found, status, detail, "" if status is OK else "pip install 'tf_keras~=2.21.0'")


def test_tf_keras_that_nobody_asks_for():
    assert software.legacy_keras({}, "2.21.0", None) is None
    assert software.legacy_keras({}, "2.21.0", "2.21.0") is None


def test_the_backend_of_keras():
    expect(software.keras_backend({}, "tensorflow"), OK, "tensorflow")
    expect(software.keras_backend({}, None), OK, "tensorflow")
    expect(
        software.keras_backend({"KERAS_BACKEND": "jax"}, "jax"), PROBLEM, "jax, by KERAS_BACKEND", "export KERAS_BACKEND"
    )
    expect(software.keras_backend({}, "torch"), PROBLEM, "torch, by the file keras.json", "export KERAS_BACKEND=tensorflow")
    expect(software.keras_backend({"KERAS_BACKEND": "tensorflow"}, "torch"), OK, "tensorflow")


@pytest.mark.parametrize(
    ("text", "backend"), [('{"backend": "jax"}', "jax"), ("{}", None), ("[]", None), ("{", None), (None, None)]
)
def test_the_file_that_names_the_backend(text, backend, tmp_path):
    if text is not None:
        (tmp_path / "keras.json").write_text(text)
    assert software.configured_backend({"KERAS_HOME": str(tmp_path)}) == backend


@pytest.mark.parametrize(
    ("name", "value", "status", "detail", "remedy"),
    [
        ("TF_FORCE_GPU_ALLOW_GROWTH", "1", WARNING, "neither true nor false", "unset TF_FORCE_GPU_ALLOW_GROWTH"),
        ("XLA_FLAGS", "--xla_dump_to=/d", WARNING, "slows every trial", "unset XLA_FLAGS"),
        ("XLA_FLAGS", "--xla_gpu_autotune_level=0", OK, "passed on to every trial", ""),
        ("TF_ENABLE_ONEDNN_OPTS", "0", OK, "changes rate and memory on a CPU", ""),
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
    return list(gpus.reported(visible, everything, environment, plugged_in=plugged_in))


def test_gpus_that_are_not_to_be_had():
    (none,) = reported()
    expect(none, OK, "trials run on the CPU")
    (undriven,) = reported(plugged_in=True)
    expect(undriven, WARNING, "its driver does not answer", "nvidia-smi")
    (hidden,) = reported((), (GPU,), "")
    expect(hidden, WARNING, "hides all 1", "unset CUDA_VISIBLE_DEVICES")
    (sliced,) = reported((), (GPU,), "MIG-4d2e")
    expect(sliced, PROBLEM, "names MIG-4d2e: MIG slices are not supported yet", "device: cpu")
    assert [found.status for found in gpus.seen(SEEN, (), {"CUDA_VISIBLE_DEVICES": "MIG-4d2e"})] == [OK]
    some, _ = reported((GPU,), (GPU, GPU), "0")
    expect(some, OK, "leaves 1 of 2")


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
    [(3, "shares the host's memory"), (4, "Give the container a whole"), (15, "Restart the machine"), (999, "nvidia-smi")],
)
def test_a_gpu_that_the_driver_does_not_tell_of(code, remedy):
    unread = UnreadDevice(0, "NVIDIA GB10", "GPU-1", str(pynvml.NVMLError(code)), code)
    (found,) = reported((unread,), (unread,))
    assert found.subject == "gpu:0"
    expect(found, WARNING, f"NVIDIA GB10, left out of every tune: asked for its memory, the driver says '{unread.problem}'")
    assert remedy in found.remedy
    assert "no NVIDIA driver reports" not in str(list(gpus.seen(SEEN, (unread,), {})))


def test_a_gpu_that_the_driver_does_not_tell_of_keeps_nothing_from_being_looked_at(monkeypatch):
    unread = UnreadDevice(0, "NVIDIA GB10", "GPU-1", "Not Supported", 3)
    monkeypatch.setattr(diagnose, "survey", lambda *, hidden=False: (unread,))
    monkeypatch.setattr(diagnose, "Probe", lambda: Told(SEEN))
    monkeypatch.setattr(diagnose, "_trial", lambda here, device: ok("trial", f"on {device}, of {here.devices}"))
    assert ok("trial", "on None, of ()") in list(diagnose.diagnose())


def test_numbers_of_gpus_that_are_not_alike_are_ambiguous():
    other = replace(GPU, index=1, name="an older GPU", uuid="GPU-2")

    def warned(everything, **environment):
        found = gpus.reported((GPU,), everything, environment, plugged_in=True)
        return [finding.remedy for finding in found if "counts the fastest first" in finding.detail]

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
    (on_cpu,) = gpus.seen(BLIND, (), {})
    expect(on_cpu, OK, "2.21.0 with Keras 3.15.1, imported in 2.0 s; built with CUDA; sees 0 GPUs")
    first, growth = gpus.seen(SEEN, (GPU,), {})
    expect(first, OK, "sees 1 GPU")
    assert growth.subject == "memory growth"
    expect(growth, OK, "off: ")
    *_, growth = gpus.seen(SEEN, (GPU,), {"TF_FORCE_GPU_ALLOW_GROWTH": "true"})
    expect(growth, OK, "on, by TF_FORCE_GPU_ALLOW_GROWTH")
    _, other = gpus.seen(SEEN, (), {})
    expect(other, WARNING, "which no NVIDIA driver reports", "device: cpu")


@pytest.mark.parametrize(
    ("built_with_cuda", "log", "detail", "remedy"),
    [
        (False, "", "this build has no CUDA", "pip uninstall tensorflow-cpu. Run pip install 'autofit[gpu]'"),
        (True, "W gpu_device.cc] Cannot dlopen some GPU libraries. …", "for want of CUDA's libraries", "'autofit[gpu]'"),
        (
            True,
            "E x.cc:1] CUDA driver version is insufficient for …",
            "driver version is insufficient",
            "Update the NVIDIA",
        ),
        (True, "failed call to cuInit: CUDA_ERROR_UNKNOWN: x", "CUDA_ERROR_UNKNOWN", "Update the NVIDIA driver"),
        (True, "nothing to the point", "does not say why", "'autofit[gpu]'"),
    ],
)
def test_a_gpu_that_tensorflow_does_not_see(built_with_cuda, log, detail, remedy):
    blind = BackendReport("2.21.0", "3.15.1", 2.0, built_with_cuda, KERNELS, (), log)
    _, found = gpus.seen(blind, (GPU,), {})
    expect(found, PROBLEM, detail, remedy)


@pytest.mark.parametrize(("capability", "told"), [((7, 5), False), ((9, 0), False), ((12, 0), True), (None, False)])
def test_a_gpu_that_is_newer_than_tensorflow(capability, told):
    newer = BackendReport("2.21.0", "3", 2.0, True, KERNELS, (VisibleGpu("RTX 5090", capability, None),))
    found = [finding for finding in gpus.seen(newer, (GPU,), {}) if finding.status is not OK]
    assert len(found) == told
    if told:
        expect(found[0], WARNING, "no kernels for RTX 5090 (compute capability 12.0)", "a newer one")


def test_tensorflow_that_cannot_be_imported():
    (found,) = gpus.seen(ProbeFailure("died by SIGSEGV", "SIGSEGV", ("one", "two")), (), {})
    expect(found, PROBLEM, "cannot be imported, died by SIGSEGV: one / two", "pip install autofit")
    (found,) = gpus.seen(ProbeFailure("died by SIGILL", "SIGILL", ()), (), {})
    expect(found, PROBLEM, "died by SIGILL", "AVX")


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
    assert hung.how == "it did not come to its end in 1 s"
    assert looked("print('hello')").how == "told nothing that can be read"


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
    return memory.host(here, total, lambda: holders)


def test_host_memory():
    holders = [memory.Holder("chrome", 7, 9 * GIB)]
    expect(host_finding(12 * GIB), OK, "12.0 GiB of 16.0 GiB available")
    expect(host_finding(12 * GIB, 64 * GIB), OK, "limit of the cgroup; the machine has 64.0 GiB")
    expect(host_finding(5 * GIB, holders=holders), WARNING, "held most by chrome (pid 7) 9.00 GiB", "End what holds it:")
    expect(host_finding(5 * GIB, 64 * GIB), WARNING, "limit of the cgroup", "docker run --memory")
    expect(host_finding(GIB // 2, holders=holders), PROBLEM, "chrome (pid 7)", "half a GiB")


def test_who_holds_the_most_memory_here():
    found = memory.holders()
    assert 1 <= len(found) <= 3
    assert [holder.size_bytes for holder in found] == sorted((holder.size_bytes for holder in found), reverse=True)
    assert all(holder.name for holder in found)


def test_swap():
    expect(memory.swap(0, 0, 16 * GIB), OK, "none")
    expect(memory.swap(100 * MIB, 8 * GIB, 16 * GIB), OK, "in use")
    expect(memory.swap(2 * GIB, 8 * GIB, 16 * GIB), WARNING, "2.00 GiB of 8.00 GiB in use", "swapoff")
    used, there = memory.swap_use()
    assert 0 <= used <= there


@pytest.mark.parametrize(
    ("size", "free", "status", "detail"),
    [
        (8 * GIB, 8 * GIB, OK, "8.00 GiB of 8.00 GiB free"),
        (64 * MIB, 64 * MIB, OK, "too little only for data that shares memory itself"),
        (8 * GIB, 4096, PROBLEM, "worker processes die"),
        (0, 0, PROBLEM, "there is none"),
    ],
)
def test_shared_memory(size, free, status, detail):
    expect(memory.shared(size, free, expected=True), status, detail, "" if status is OK else "--shm-size")
    assert memory.shared(size, free, expected=False) is None


def test_cores():
    expect(processes.cores(8, 8, None), OK, "8")
    expect(processes.cores(16, 4, 4.0), OK, "4 of 16, by affinity")
    expect(processes.cores(16, 16, 2.5), WARNING, "quota is 2.5", "TF_NUM_INTRAOP_THREADS=2")
    expect(processes.cores(16, 1, None), WARNING, "take turns", "taskset")


def test_whether_the_kernels_kills_are_seen():
    expect(processes.oom_kills(visible=True, system="linux"), OK, "are seen")
    expect(processes.oom_kills(visible=False, system="linux"), WARNING, "not seen", "systemd-run")
    assert processes.oom_kills(visible=False, system="darwin") is None


@pytest.mark.parametrize(
    ("limits", "subject", "remedy"),
    [
        ((256, None, None, None), "open files", "ulimit -n"),
        ((None, 100, None, None), "processes", "ulimit -u"),
        ((None, None, 8 * GIB, None), "address space", "ulimit -v unlimited"),
        ((None, None, None, (90, 100)), "processes", "--pids-limit"),
    ],
)
def test_low_limits(limits, subject, remedy):
    (found,) = processes.limits(*limits)
    assert found.subject == subject
    expect(found, WARNING, "", remedy)


def test_ample_limits_are_not_spoken_of():
    assert list(processes.limits(65536, None, None, (100, 30000))) == []
    assert len(processes.resource_limits()) == 3


def folder(writable=True, free=GIB * 50, kind="ext4"):
    return folders.Folder(Path("/some/where"), writable, free, kind)


def test_the_temporary_folder():
    expect(folders.check_temporary(folder()), OK, "50.0 GiB free in /some/where")
    expect(folders.check_temporary(None), PROBLEM, "no folder cannot be written", "TMPDIR")
    expect(folders.check_temporary(folder(writable=False)), PROBLEM, "/some/where cannot be written", "TMPDIR")
    expect(folders.check_temporary(folder(free=MIB)), WARNING, "arrays are written there", "TMPDIR")
    expect(folders.check_temporary(folder(kind="tmpfs")), WARNING, "which is in RAM", "/var/tmp")


def test_the_folder_of_the_trials():
    expect(folders.check_storage(folder()), OK, "50.0 GiB free in /some/where")
    expect(folders.check_storage(folder(writable=False)), PROBLEM, "no trial can be stored", "--storage")
    expect(folders.check_storage(folder(free=MIB)), WARNING, "1.00 MiB free", "--storage")
    expect(folders.check_storage(folder(kind="nfs4")), WARNING, "on nfs4: SQLite's locks", "--storage")
    assert folders.folder_of("sqlite:////home/me/trials.sqlite3") == Path("/home/me")


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
    assert folders.temporary() is None


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
        (Outcome.OK, True, OK, "fork server ready in 0.0 s; a fork ran a tiny model on the CPU", ""),
        (Outcome.OK, False, OK, "an interpreter of its own ran a tiny model on the CPU", ""),
        (Outcome.TIMEOUT, True, PROBLEM, "forking is not safe here: a forked trial of a tiny model hung", "--launch plain"),
        (Outcome.CRASHED, True, PROBLEM, "a forked trial of a tiny model died", "--launch plain"),
        (Outcome.CRASHED, False, PROBLEM, "a tiny model failed: made to be crashed", "--force-reinstall"),
        (Outcome.ERROR, True, PROBLEM, "a tiny model failed", "--force-reinstall"),
        (Outcome.HOST_OOM, True, PROBLEM, "ran out of memory", "Make room"),
        (TrialProcessError("could not be:\n\nTraceback\nboom"), True, PROBLEM, "could not be: boom", "--launch plain"),
        (UsageError("one line"), True, PROBLEM, "one line", "--launch plain"),
    ],
)
def test_a_real_try(ended, forks, status, detail, remedy):
    expect(smoke_trial.attempt(Served(ended), HERE, None, forks=forks), status, detail, remedy)


def test_a_try_on_a_gpu_takes_little_of_it():
    launcher = Served(Outcome.OK)
    expect(smoke_trial.attempt(launcher, HERE, Device(0, "T4", "u", 16 * GIB, GIB), forks=True), OK, "on T4")
    assert launcher.spec.limits.device_bytes == GIB // 2


def test_a_try_that_hangs_on_a_gpu_may_be_compiling():
    found = smoke_trial.attempt(Served(Outcome.TIMEOUT), HERE, GPU, forks=True)
    expect(found, PROBLEM, "did not come to its end on NVIDIA T4", "CUDA compiles kernels once")


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
    assert not host.tells_oom_kills()
    assert host.process_limit() is None
    cgroup("a/cpu.max", "150000 100000\n")
    cgroup("a/b/memory.events", "oom 1\noom_kill 3\n")
    cgroup("a/pids.max", "100\n")
    cgroup("a/pids.current", "7\n")
    cgroup("a/b/pids.max", "max\n")
    assert host.cpu_quota() == 1.5
    assert host.usable_cores() == min(2, host.visible_cores())
    assert host.tells_oom_kills()
    assert host.oom_kills() == 3
    assert host.process_limit() == (7, 100)


def test_cgroups_of_version_1(cgroup):
    cgroup("own", "4:memory:/a\n2:cpu,cpuacct:/a\n")
    cgroup("cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n")
    cgroup("cpu,cpuacct/a/cpu.cfs_period_us", "100000\n")
    cgroup("memory/a/memory.oom_control", "oom_kill 0\n")
    assert host.cpu_quota() is None
    assert host.tells_oom_kills()
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
        (BLIND, "jax", False),
    ],
)
def test_all_is_looked_at_and_nothing_tried_that_cannot_work(seen, backend, tried, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", backend)
    monkeypatch.setattr(diagnose, "Probe", lambda: Told(seen))
    monkeypatch.setattr(diagnose, "_trial", lambda here, device: ok("trial", "done"))
    events = list(diagnose.diagnose())
    subjects = [event.subject for event in events if isinstance(event, Finding)]
    assert subjects[:3] == ["platform", "python", "libraries"]
    assert {"host memory", "cores", "temporary files", "storage", "tensorflow", "keras backend"} <= set(subjects)
    assert "start method" not in subjects
    assert ("trial" in subjects) == tried
    assert Told.left
    assert any(isinstance(event, Activity) for event in events)


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
    found = show.show(events, Console(file=written, width=80, highlight=False, **console), Console(file=io.StringIO()))
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
        show.show([Activity("importing"), FINDINGS[0]], None, Console(file=written, force_terminal=terminal))
        assert ("importing" in written.getvalue()) == terminal


def test_problems_and_warnings_are_counted():
    assert show.summarise(FINDINGS) == "1 problem, 1 warning."
    assert show.summarise(FINDINGS[:1]) == "0 problems, 0 warnings."
    assert show.has_problem(FINDINGS)
    assert not show.has_problem(FINDINGS[:2])


def test_findings_as_json():
    told = json.loads(show.as_json(FINDINGS))
    assert (told["version"], told["problems"], told["warnings"]) == (1, 1, 1)
    assert told["findings"][0] == {"subject": "cores", "status": "ok", "detail": "2", "remedy": None}
    assert told["findings"][2]["remedy"] == "Make it work."
