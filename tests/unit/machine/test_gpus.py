"""Readings of GPUs, from a fake NVIDIA driver."""

import contextlib
import os
import sys
from dataclasses import replace
from types import SimpleNamespace as Fake

import pynvml
import pytest

from autofit.errors import DeviceBusyError, TrialProcessError, UsageError
from autofit.machine import gpus
from autofit.records.machine import ON_CPU, Device
from autofit.records.states import Phase
from autofit.trial import launcher
from tests.unit.machine.test_limits import MACHINE

GIB = 2**30
GPU = Device(0, "NVIDIA T4", "GPU-1", 16 * GIB, 4 * GIB)
CONTEXT = "tensorflow.python.eager.context"


@pytest.fixture
def answers(monkeypatch):
    """Set answers of the driver."""

    def answers(**functions):
        for name, answer in functions.items():
            monkeypatch.setattr(pynvml, f"nvml{name}", answer)

    return answers


@pytest.fixture
def driver(monkeypatch, answers):
    """A driver with one GPU of 16 GiB; returns who holds how much of it, to be filled in."""
    held = {}
    answers(
        Init=lambda: None,
        Shutdown=lambda: None,
        SystemGetDriverVersion=lambda: "550.54",
        DeviceGetCount=lambda: 1,
        DeviceGetHandleByIndex=lambda index: index,
        DeviceGetHandleByUUID=lambda uuid: 0,
        DeviceGetUUID=lambda handle: "GPU-1",
        DeviceGetName=lambda handle: "NVIDIA T4",
        DeviceGetCudaComputeCapability=lambda handle: [7, 5],
        DeviceGetMemoryInfo=lambda handle: Fake(
            total=16 * GIB, used=sum(held.values()), free=16 * GIB - sum(held.values())
        ),
        DeviceGetComputeRunningProcesses=lambda handle: [
            Fake(pid=p, usedGpuMemory=size) for p, size in held.items()
        ],
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return held


def refuse(answers, function, handles=(0,)):
    """Let the driver answer a function, asked for these GPUs, with an error."""
    answer = getattr(pynvml, f"nvml{function}")

    def asked(*arguments):
        if not arguments or arguments[0] in handles:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return answer(*arguments)

    answers(**{function: asked})


def test_a_device_has_what_nvml_reports_and_who_holds_its_memory(driver, answers):
    driver[1] = 12 * GIB
    (gpu,) = gpus.nvidia_devices()
    assert (gpu.name, gpu.driver, gpu.total_bytes, gpu.free_bytes) == (
        "NVIDIA T4",
        "550.54",
        16 * GIB,
        4 * GIB,
    )
    assert gpu.compute_capability == (7, 5)
    assert "(pid 1) holds 12.0 GiB" in gpu.held_by[0]
    refuse(answers, "DeviceGetCudaComputeCapability")
    assert gpus.nvidia_devices() == (replace(gpu, compute_capability=None),)
    for function in ("SystemGetDriverVersion", "DeviceGetCount", "Shutdown"):
        refuse(answers, function)
    assert gpus.nvidia_devices() == ()


def test_a_gpu_held_by_the_calling_process_is_busy(driver, answers):
    driver[os.getpid()] = 3 * GIB
    drawing = [
        Fake(pid=7, usedGpuMemory=2 * GIB),
        Fake(pid=os.getpid(), usedGpuMemory=None),
    ]
    answers(DeviceGetGraphicsRunningProcesses=lambda handle: drawing)
    assert gpus.bytes_by_pid(GPU) == {7: 2 * GIB, os.getpid(): 3 * GIB}
    with pytest.raises(DeviceBusyError, match=r"3\.00 GiB .* NVIDIA T4"):
        gpus.require_free(GPU)


def tensorflow(handle, *devices):
    return Fake(
        context_safe=lambda: Fake(
            _context_handle=handle, list_logical_devices=lambda kind: devices
        )
    )


def torch_holding(*reserved):
    cuda = Fake(
        is_initialized=lambda: True,
        device_count=lambda: len(reserved),
        memory_reserved=lambda index: reserved[index],
    )
    return Fake(cuda=cuda)


def jax_holding(stats):
    clients = {
        "cpu": Fake(
            local_devices=lambda: [Fake(memory_stats=lambda: {"pool_bytes": 1})]
        ),
        "cuda": Fake(local_devices=lambda: [Fake(memory_stats=lambda: stats)]),
    }
    return Fake(_backends=clients)


@pytest.mark.parametrize(
    ("module", "loaded", "is_busy"),
    [
        (CONTEXT, tensorflow(1, "/device:GPU:0"), True),
        ("torch", torch_holding(0, GIB), True),
        ("jax._src.xla_bridge", jax_holding({"pool_bytes": 12 * GIB}), True),
        # the GPUs were only listed, or their names printed
        (CONTEXT, tensorflow(None, "/device:GPU:0"), False),
        ("torch", torch_holding(0, 0), False),
        ("jax._src.xla_bridge", jax_holding({"pool_bytes": 0}), False),
        ("jax._src.xla_bridge", jax_holding(None), False),
        (CONTEXT, Fake(), False),  # of a version without these names
        ("torch", Fake(cuda=Fake(is_initialized=lambda: False)), False),
    ],
)
# what a driver may report: nobody, no bytes, a context, and in a container the pid that the host
# gives
@pytest.mark.parametrize(
    "held", [{}, {os.getpid(): 0}, {os.getpid(): GIB // 2}, {4711: GIB}]
)
def test_a_gpu_used_by_a_framework_of_this_process_is_busy(
    driver, monkeypatch, held, module, loaded, is_busy
):
    driver |= held
    monkeypatch.setitem(sys.modules, module, loaded)
    with pytest.raises(DeviceBusyError) if is_busy else contextlib.nullcontext():
        gpus.require_free(GPU)


def test_use_is_summed_over_the_given_processes_and_what_is_not_reported_is_unknown(
    driver, answers
):
    driver |= {10: 2 * GIB, 11: GIB, 12: 0}
    assert gpus.used_bytes(GPU, {10, 11}) == (3 * GIB, 3 * GIB)
    assert gpus.used_bytes(GPU, {12}) == gpus.used_bytes(GPU, {99}) == (3 * GIB, None)
    refuse(answers, "DeviceGetMemoryInfo")
    assert gpus.used_bytes(GPU, {10}) == (None, 2 * GIB)


def test_a_gpu_that_nvml_cannot_read_is_left_out_and_the_others_stay(driver, answers):
    answers(DeviceGetCount=lambda: 2)
    refuse(answers, "DeviceGetMemoryInfo")
    assert [gpu.index for gpu in gpus.nvidia_devices()] == [1]


@pytest.mark.parametrize(
    ("named", "uuids"),
    [(None, ["MIG-0af0", "MIG-1af0"]), ("MIG-1a", ["MIG-1af0"]), ("1", ["MIG-1af0"])],
)
def test_each_mig_slice_is_a_device(driver, answers, monkeypatch, named, uuids):
    answers(
        DeviceGetMaxMigDeviceCount=lambda handle: 2,
        DeviceGetUUID=lambda handle: f"MIG-{handle[-1]}af0",
        DeviceGetDeviceHandleFromMigDeviceHandle=lambda handle: 0,
        DeviceGetMigDeviceHandleByIndex=lambda handle, index: f"slice {index}",
    )
    refuse(answers, "DeviceGetMemoryInfo")  # a container may not read the whole GPU
    refuse(answers, "DeviceGetCudaComputeCapability", ("slice 0", "slice 1"))
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    visible = gpus.nvidia_devices()
    assert [device.uuid for device in visible] == uuids
    assert {device.compute_capability for device in visible} == {(7, 5)}


@pytest.mark.parametrize(
    ("named", "indices"),
    [
        (None, [0, 1, 2]),
        (" 2 , 1", [2, 1]),
        ("1,-1,0", [1]),
        ("", []),
        ("GPU-c,GPU-a", [2, 0]),
        ("1,GPU-x,0", [1]),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(
    driver, answers, monkeypatch, named, indices
):
    answers(
        DeviceGetCount=lambda: 3,
        DeviceGetUUID=lambda handle: f"GPU-{'abc'[handle]}1f0e",
    )
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert [gpu.index for gpu in gpus.nvidia_devices()] == indices


def shown(root, file):
    """A file by which a system shows an accelerator."""
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


@pytest.mark.parametrize(
    "file",
    ["dev/nvidia0", "dev/nvidia3", "dev/nvhost-gpu", "usr/lib/wsl/lib/libcuda.so.1"],
)
@pytest.mark.parametrize(
    ("visible", "is_hidden"),
    [
        (None, False),
        ("0", False),
        ("MIG-4d2e, MIG-5f3a", False),
        ("", True),
        ("-1", True),
    ],
)
def test_a_tune_never_silently_falls_back_to_the_cpu_beside_an_unusable_gpu(
    monkeypatch, tmp_path, file, visible, is_hidden
):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(gpus, "_ROOT", tmp_path)
    assert gpus.choose_placement(MACHINE, "auto") == ON_CPU  # no device file
    shown(tmp_path, file)
    assert gpus.choose_placement(MACHINE, "cpu") == ON_CPU
    with (
        contextlib.nullcontext()
        if is_hidden
        else pytest.raises(UsageError, match=rf"device: .*{file}.* write cpu")
    ):
        assert gpus.choose_placement(MACHINE, "auto") == ON_CPU


@pytest.mark.parametrize(
    ("file", "package", "version", "named"),
    [
        (
            "dev/kfd",
            "tensorflow-rocm",
            "2.18.1",
            r"an AMD GPU \(.*dev/kfd\), on which tensorflow-rocm",
        ),
        ("dev/kfd", "torch", "2.9.0+rocm6.4", "an AMD GPU"),
        ("dev/accel0", "libtpu", "0.0.30", "a TPU"),
        ("dev/vfio/0", "torch-xla", "2.8.0", "a TPU"),
        ("dev/dri/renderD128", "torch", "2.9.0+xpu", "an Intel GPU"),
        ("System/Library", "tensorflow-metal", "1.2.0", "Apple's GPU"),
    ],
)
def test_an_accelerator_that_autofit_does_not_know_is_named_if_programs_train_on_it(
    monkeypatch, tmp_path, file, package, version, named
):
    installed = {"torch": "2.9.0"}
    monkeypatch.setattr(gpus, "_ROOT", tmp_path)
    monkeypatch.setattr(gpus, "version_of", installed.get)
    shown(tmp_path, file)
    # a desktop's graphics, for which nothing is installed
    assert gpus.choose_placement(MACHINE, "auto") == ON_CPU
    installed[package] = version
    with pytest.raises(
        UsageError, match=rf"{named}.* NVIDIA only; to tune on the CPU, write cpu"
    ):
        gpus.choose_placement(MACHINE, "auto")
    assert gpus.choose_placement(MACHINE, "cpu") == ON_CPU


def test_a_gpu_that_shares_the_memory_of_the_host_is_named(driver, answers):
    answers(DeviceGetName=lambda handle: "NVIDIA GB10")
    refuse(answers, "DeviceGetMemoryInfo")
    assert gpus.nvidia_devices() == ()
    with pytest.raises(
        UsageError, match=r"memory of NVIDIA GB10, as of GPUs that share the host"
    ):
        gpus.choose_placement(MACHINE, "auto")


@pytest.mark.parametrize(
    ("visible", "order", "names", "is_clear"),
    [
        ("0", None, ("NVIDIA T400", "NVIDIA A40"), False),
        ("1, 0", None, ("NVIDIA T400", "NVIDIA A40"), False),
        ("0", "PCI_BUS_ID", ("NVIDIA T400", "NVIDIA A40"), True),
        ("0", None, ("NVIDIA A40", "NVIDIA A40"), True),
        ("GPU-1", None, ("NVIDIA T400", "NVIDIA A40"), True),
        (None, None, ("NVIDIA T400", "NVIDIA A40"), True),
    ],
)
def test_a_number_that_cuda_and_the_driver_count_differently_is_an_error(
    driver, answers, monkeypatch, visible, order, names, is_clear
):
    answers(
        DeviceGetCount=lambda: 2,
        DeviceGetName=lambda handle: names[handle],
        DeviceGetUUID=lambda handle: f"GPU-{handle + 1}",
    )
    for name, value in (
        ("CUDA_VISIBLE_DEVICES", visible),
        ("CUDA_DEVICE_ORDER", order),
    ):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    machine = replace(MACHINE, devices=gpus.nvidia_devices())
    expected = pytest.raises(
        UsageError, match=r"NVIDIA A40, NVIDIA T400.*by UUID.*PCI_BUS_ID"
    )
    with contextlib.nullcontext() if is_clear else expected:
        assert gpus.choose_placement(machine, "auto").device in machine.devices
    assert gpus.choose_placement(machine, "cpu") == ON_CPU


def test_throttle_reasons_of_a_gpu(driver, answers):
    answers(DeviceGetCurrentClocksThrottleReasons=lambda handle: 0x1 | 0x4 | 0x40)
    assert gpus.throttles(GPU) == {"power cap", "temperature"}
    refuse(answers, "DeviceGetCurrentClocksThrottleReasons")
    assert gpus.throttles(GPU) == frozenset()


def test_a_trial_waits_for_memory_taken_during_the_tune_and_names_the_holder(
    driver, monkeypatch
):
    monkeypatch.setattr(launcher, "_GPU_SECONDS", 0.05)
    (gpu,) = gpus.nvidia_devices()
    phases = []
    launcher.wait_for_room(gpu, 14 * GIB, phases.append)
    assert phases == []
    driver[1] = 5 * GIB
    with pytest.raises(
        TrialProcessError, match=r"11\.0 GiB .*14\.0 GiB .* holds 5\.00 GiB"
    ):
        launcher.wait_for_room(gpu, 14 * GIB, phases.append)
    assert phases == [Phase.WAITING_FOR_GPU]
    launcher.wait_for_room(gpu, 14 * GIB, lambda phase: driver.pop(1))
    assert driver == {}
