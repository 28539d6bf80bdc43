"""Readings of GPUs, from a fake NVIDIA driver."""

import os
import sys
from dataclasses import replace
from types import SimpleNamespace

import pynvml
import pytest

from autofit.errors import DeviceBusyError, TrialProcessError, UsageError
from autofit.machine import gpus, limits
from autofit.records.machine import ON_CPU, Device, Placement
from autofit.records.states import Phase
from autofit.trial import launcher
from autofit.trial.launcher import ProcessLauncher
from autofit.trial.watcher import Watcher
from autofit.workload.workload import Workload
from tests.unit.machine.test_limits import MACHINE

GIB = 2**30
GPU = Device(0, "NVIDIA T4", "GPU-1", 16 * GIB, 4 * GIB)


@pytest.fixture
def driver(monkeypatch):
    """A driver with one GPU of 16 GiB; returns who holds how much of it, to be filled in."""
    held = {}
    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlSystemGetDriverVersion": lambda: "550.54",
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetHandleByUUID": lambda uuid: 0,
        "nvmlDeviceGetUUID": lambda handle: "GPU-1",
        "nvmlDeviceGetName": lambda handle: "NVIDIA T4",
        "nvmlDeviceGetCudaComputeCapability": lambda handle: [7, 5],
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(
            total=16 * GIB, used=sum(held.values()), free=16 * GIB - sum(held.values())
        ),
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: [
            SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in held.items()
        ],
    }
    for name, answer in answers.items():
        monkeypatch.setattr(gpus.pynvml, name, answer)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return held


def test_an_amount_above_what_is_free_names_the_holders_of_the_gpu(driver):
    driver[1] = 12 * GIB
    (gpu,) = gpus.nvidia_devices()
    assert gpu.free_bytes == 4 * GIB
    with pytest.raises(UsageError, match=r"device_memory: 6GiB .*4\.00 GiB .*16\.0 GiB .*\(pid 1\) holds 12\.0 GiB"):
        limits.resolve_limits(MACHINE, gpu, "6GiB", "80%")


def test_a_gpu_held_by_the_calling_process_is_busy(driver, monkeypatch):
    driver[os.getpid()] = 3 * GIB
    drawing = [fake(pid=7, usedGpuMemory=2 * GIB), fake(pid=os.getpid(), usedGpuMemory=None)]
    monkeypatch.setattr(pynvml, "nvmlDeviceGetGraphicsRunningProcesses", lambda handle: drawing)
    assert gpus.bytes_by_pid(GPU) == {7: 2 * GIB, os.getpid(): 3 * GIB}
    with pytest.raises(DeviceBusyError, match=r"3\.00 GiB .* NVIDIA T4"):
        gpus.require_free(GPU)


def test_a_process_that_uses_another_gpu_does_not_make_this_one_busy(driver, monkeypatch):
    other = replace(GPU, index=1, uuid="GPU-2")
    monkeypatch.setattr(gpus, "nvidia_devices", lambda: (GPU, other))
    monkeypatch.setattr(gpus, "bytes_by_pid", lambda device: {os.getpid(): 3 * GIB} if device == other else {})
    monkeypatch.setitem(sys.modules, "torch", fake(cuda=fake(is_initialized=lambda: True)))
    gpus.require_free(GPU)
    with pytest.raises(DeviceBusyError):
        gpus.require_free(other)


def fake(**attributes):
    return SimpleNamespace(**attributes)


def tensorflow(*, handle, devices):
    return fake(context_safe=lambda: fake(_context_handle=handle, list_logical_devices=lambda kind: devices))


# what a container's driver may report: nobody, no bytes, the pid that the host gives
@pytest.mark.parametrize("held", [{}, {os.getpid(): 0}, {4711: GIB}])
@pytest.mark.parametrize(
    ("module", "loaded"),
    [
        ("tensorflow.python.eager.context", tensorflow(handle=1, devices=["/device:GPU:0"])),
        ("torch", fake(cuda=fake(is_initialized=lambda: True))),
        ("jax._src.xla_bridge", fake(_backends={"cpu": 1, "cuda": 2})),
    ],
)
def test_a_gpu_used_by_a_framework_of_this_process_is_busy(driver, monkeypatch, held, module, loaded):
    driver |= held
    monkeypatch.setitem(sys.modules, module, loaded)
    with pytest.raises(DeviceBusyError):
        gpus.require_free(GPU)


@pytest.mark.parametrize(
    ("module", "loaded"),
    [
        ("tensorflow.python.eager.context", tensorflow(handle=None, devices=["/device:GPU:0"])),
        ("tensorflow.python.eager.context", tensorflow(handle=1, devices=[])),
        ("tensorflow.python.eager.context", fake()),
        ("torch", fake(cuda=fake(is_initialized=lambda: False))),
        ("jax._src.xla_bridge", fake(_backends={"cpu": 1})),
    ],
)
def test_listing_the_gpus_does_not_make_them_busy(driver, monkeypatch, module, loaded):
    monkeypatch.setitem(sys.modules, module, loaded)
    gpus.require_free(GPU)


@pytest.mark.parametrize(
    ("held", "pids", "own_bytes"),
    [
        ({10: 2 * GIB, 11: GIB, 12: 5 * GIB}, {10, 11}, 3 * GIB),
        ({10: 2 * GIB}, {99}, None),
        ({10: 0, 12: GIB}, {10}, None),  # as a container's driver may say
    ],
)
def test_use_is_summed_over_the_given_processes_and_0_bytes_are_unknown(driver, held, pids, own_bytes):
    driver |= held
    assert gpus.used_bytes(GPU, pids) == (sum(held.values()), own_bytes)
    gpus.require_free(GPU)  # other processes do not make it busy


def test_without_a_driver_there_is_no_gpu():
    if gpus.nvidia_devices():
        pytest.skip("this machine has a GPU")
    assert gpus.used_bytes(GPU, {1}) == (None, None)
    gpus.require_free(GPU)


ERRORS = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_GPU_IS_LOST)


def refuse(monkeypatch, code, *functions, handles=(0,)):
    """Let the driver answer these functions, asked for these GPUs, with an error."""
    for name in functions:
        answer = getattr(pynvml, name)

        def asked(handle, answer=answer):
            if handle in handles:
                raise pynvml.NVMLError(code)
            return answer(handle)

        monkeypatch.setattr(pynvml, name, asked)


@pytest.mark.parametrize("code", ERRORS)
@pytest.mark.parametrize("function", ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetHandleByIndex"])
def test_a_gpu_that_nvml_cannot_read_is_left_out_and_the_others_stay(driver, monkeypatch, code, function):
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 2)
    refuse(monkeypatch, code, function)
    (gpu,) = gpus.nvidia_devices()
    assert gpu.index == 1
    assert gpus.choose_placement(replace(MACHINE, devices=(gpu,)), "auto").device == gpu
    with pytest.raises(UsageError, match=r"available GPUs: gpu:1 "):
        gpus.choose_placement(replace(MACHINE, devices=(gpu,)), "gpu:0")


@pytest.mark.parametrize("code", ERRORS)
def test_use_that_nvml_does_not_report_is_unknown(driver, monkeypatch, code):
    driver[10] = 2 * GIB
    refuse(monkeypatch, code, "nvmlDeviceGetMemoryInfo")
    assert gpus.used_bytes(GPU, {10}) == (None, 2 * GIB)
    assert gpus.used_bytes(GPU, {11}) == (None, None)
    watcher = Watcher(os.getpid(), 1024 * GIB, 9.0, (GPU,))
    assert watcher.poll() is None
    assert watcher.driver_peak_bytes is None
    refuse(monkeypatch, code, "nvmlDeviceGetHandleByUUID", handles=("GPU-1",))
    assert gpus.used_bytes(GPU, {10}) == (None, None)
    gpus.require_free(GPU)


def test_a_device_has_what_nvml_reports_and_none_if_it_reports_nothing(driver, monkeypatch):
    (gpu,) = gpus.nvidia_devices()
    assert (gpu.name, gpu.driver, gpu.total_bytes, gpu.compute_capability) == ("NVIDIA T4", "550.54", 16 * GIB, (7, 5))
    refuse(monkeypatch, pynvml.NVML_ERROR_NOT_SUPPORTED, "nvmlDeviceGetCudaComputeCapability")
    assert gpus.nvidia_devices() == (replace(gpu, compute_capability=None),)

    def unknown():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)

    for name in ("nvmlSystemGetDriverVersion", "nvmlDeviceGetCount", "nvmlShutdown"):
        monkeypatch.setattr(pynvml, name, unknown)
    assert gpus.nvidia_devices() == ()


@pytest.fixture
def divided(driver, monkeypatch):
    """Two slices of 5 GiB; a container may not read the memory of the whole GPU."""
    sizes = {"slice 0": 5 * GIB, "slice 1": 5 * GIB}

    def memory(handle):
        if handle not in sizes:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
        return fake(total=sizes[handle], used=GIB, free=sizes[handle] - GIB)

    def slice_of(handle, index):
        if index >= len(sizes):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return f"slice {index}"

    answers = {
        "nvmlDeviceGetMaxMigDeviceCount": lambda handle: 7,
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetUUID": lambda handle: f"MIG-{handle[-1]}af0",
        "nvmlDeviceGetName": lambda handle: "NVIDIA A100 MIG 1g.5gb",
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": lambda handle: 0,
        "nvmlDeviceGetMigDeviceHandleByIndex": slice_of,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    refuse(monkeypatch, pynvml.NVML_ERROR_NOT_FOUND, "nvmlDeviceGetCudaComputeCapability", handles=tuple(sizes))


@pytest.mark.parametrize(
    ("named", "uuids"), [(None, ["MIG-0af0", "MIG-1af0"]), ("MIG-1a", ["MIG-1af0"]), ("1", ["MIG-1af0"])]
)
def test_each_mig_slice_is_a_device(divided, monkeypatch, named, uuids):
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    visible = gpus.nvidia_devices()
    assert [device.uuid for device in visible] == uuids
    assert {(device.total_bytes, device.free_bytes, device.compute_capability) for device in visible} == {
        (5 * GIB, 4 * GIB, (7, 5))
    }
    assert gpus.choose_placement(replace(MACHINE, devices=visible), "auto").device.uuid == uuids[0]


@pytest.mark.parametrize(
    ("named", "indices"),
    [
        (None, [0, 1, 2]),
        ("1,0", [1, 0]),
        (" 2 , 1", [2, 1]),
        ("0,7,1", [0]),
        ("-1,0", []),
        ("1,-1,0", [1]),
        ("", []),
        ("NoDevFiles", []),
        ("GPU-c,GPU-a", [2, 0]),
        ("1,GPU-x,0", [1]),
        ("0,MIG-1,1", [0]),
        ("MIG-GPU-a/1/0", []),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(driver, monkeypatch, named, indices):
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 3)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", lambda handle: f"GPU-{'abc'[handle]}1f0e")
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    visible = gpus.nvidia_devices()
    assert [gpu.index for gpu in visible] == indices
    if visible:
        assert gpus.choose_placement(replace(MACHINE, devices=visible), "auto").device.index == indices[0]


@pytest.mark.parametrize(
    ("visible", "is_hidden"), [(None, False), ("0", False), ("MIG-4d2e, MIG-5f3a", False), ("", True), ("-1", True)]
)
@pytest.mark.parametrize("device", ["auto", "gpu"])
def test_a_tune_never_silently_falls_back_to_the_cpu_beside_an_unusable_gpu(
    driver, monkeypatch, tmp_path, visible, is_hidden, device
):
    refuse(monkeypatch, pynvml.NVML_ERROR_NO_PERMISSION, "nvmlDeviceGetMemoryInfo")
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    machine = replace(MACHINE, devices=gpus.nvidia_devices())
    monkeypatch.setattr(gpus, "_DEVICE_FILE", tmp_path / "nvidia0")
    if device == "auto":
        assert gpus.choose_placement(machine, device) == ON_CPU  # no device file
    (tmp_path / "nvidia0").touch()
    assert gpus.choose_placement(machine, "cpu") == ON_CPU
    if device == "auto" and is_hidden:
        assert gpus.choose_placement(machine, device) == ON_CPU
        return
    with pytest.raises(UsageError, match="none that the NVIDIA driver" if is_hidden else r"device: .*nvidia0.* write cpu"):
        gpus.choose_placement(machine, device)


def test_throttle_reasons_of_a_gpu(driver, monkeypatch):
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCurrentClocksThrottleReasons", lambda handle: 0x1 | 0x4 | 0x40)
    assert gpus.throttles(GPU) == {"power cap", "temperature"}
    refuse(monkeypatch, pynvml.NVML_ERROR_NOT_SUPPORTED, "nvmlDeviceGetCurrentClocksThrottleReasons")
    assert gpus.throttles(GPU) == frozenset()


def test_nvml_stays_open_while_trials_run(driver, monkeypatch):
    opened = []
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: opened.append(1))
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: opened.append(-1))
    workload = Workload(len, ([1], [1]))
    with ProcessLauncher(workload, Placement.on(GPU)):
        least = sum(opened)
        gpus.used_bytes(GPU, ())
        assert least == sum(opened) == 1
    assert sum(opened) == 0


def test_a_trial_waits_for_memory_taken_during_the_tune_and_names_the_holder(driver, monkeypatch):
    monkeypatch.setattr(launcher, "_GPU_SECONDS", 0.05)
    (gpu,) = gpus.nvidia_devices()
    assert list(launcher.wait_for_room(gpu, 14 * GIB)) == []
    driver[1] = 5 * GIB
    waiting = launcher.wait_for_room(gpu, 14 * GIB)
    assert next(waiting) is Phase.WAITING_FOR_GPU
    with pytest.raises(TrialProcessError, match=r"11\.0 GiB .*14\.0 GiB .* holds 5\.00 GiB"):
        next(waiting)
    waiting = launcher.wait_for_room(gpu, 14 * GIB)
    next(waiting)
    del driver[1]
    assert list(waiting) == []


def test_memory_held_since_the_start_is_not_waited_for(driver):
    driver[1] = 5 * GIB
    (gpu,) = gpus.nvidia_devices()
    assert list(launcher.wait_for_room(gpu, 10.9 * GIB)) == []


def test_the_driver_peak_of_several_gpus_is_that_of_the_fullest(monkeypatch):
    other = replace(GPU, uuid="GPU-2", index=1)
    used = {GPU.uuid: (9 * GIB, 2 * GIB), other.uuid: (9 * GIB, 3 * GIB)}
    monkeypatch.setattr(gpus, "used_bytes", lambda gpu, pids: used[gpu.uuid])
    watcher = Watcher(os.getpid(), 1024 * GIB, 9.0, (GPU, other))
    watcher.poll()
    assert watcher.driver_peak_bytes == 3 * GIB
