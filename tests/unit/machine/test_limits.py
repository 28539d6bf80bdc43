from dataclasses import replace

import psutil
import pytest

from autofit import backends
from autofit.errors import UsageError
from autofit.machine import host, limits
from autofit.records.machine import Device, Machine

GIB = 2**30
MACHINE = Machine("Linux", "3.11", "some CPU", 4, 16 * GIB, 12 * GIB)
GPU = Device(0, "NVIDIA T4", "GPU-1", 16 * GIB, 10 * GIB)


def test_this_machine_has_usable_cores_and_memory():
    machine = host.detect()
    assert machine.cores >= 1
    assert 0 < machine.available_bytes <= machine.memory_bytes <= psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("host_memory", "host_bytes"),
    [("50%", 8 * GIB), ("6GiB", 6 * GIB), ("6 GB", 6 * 10**9), (GIB, GIB), ("100%", 12 * GIB)],
)
def test_host_memory_is_a_share_of_the_total_and_at_most_what_is_available(host_memory, host_bytes):
    assert limits.resolve_limits(MACHINE, None, "90%", host_memory).host_bytes == host_bytes


@pytest.mark.parametrize(
    ("capability", "free", "percent", "expected"),
    [
        ((8, 9), 7.6, "90%", 7.6 - 0.488 - 1.5),  # a card of 8 GiB: 90 % would be more than TensorFlow takes
        ((8, 9), 23.5, "90%", 0.9 * 23.5),
        ((7, 5), 14.6, "100%", 14.6 - 0.488 - 1.025),
        ((10, 0), 8.0, "100%", 8.0 - 0.488 - 1.758),
        ((6, 1), 8.0, "100%", 8.0 - 0.488 - 0.488),
        ((8, 6), 1.9, "100%", 1.9 - 0.488 - 0.22),  # of less than 2 GiB TensorFlow keeps 225 MiB, whatever the generation
        (None, 8.0, "90%", 7.2),
    ],
)
def test_a_share_is_at_most_what_a_program_without_a_limit_could_use(capability, free, percent, expected):
    gpu = replace(GPU, free_bytes=int(free * GIB), total_bytes=int(free * GIB), compute_capability=capability)
    pool = backends.current().pool_bytes(gpu)
    assert limits.resolve_limits(MACHINE, gpu, percent, "80%", pool).device_bytes == pytest.approx(expected * GIB, rel=0.01)
    assert limits.resolve_limits(MACHINE, gpu, "1GiB", "80%", pool).device_bytes == GIB


def test_a_gpu_filled_by_other_processes_is_an_error_that_names_them():
    full = replace(GPU, free_bytes=GIB, held_by=("python (pid 1) holds 15.0 GiB",))
    with pytest.raises(UsageError, match=r"device: .*1\.00 GiB of 16\.0 GiB .* NVIDIA T4 \(python \(pid 1\) holds"):
        limits.resolve_limits(MACHINE, full, "90%", "80%")
    small = replace(GPU, free_bytes=int(1.2 * GIB), total_bytes=2 * GIB)
    assert limits.resolve_limits(MACHINE, small, "90%", "80%").device_bytes


@pytest.mark.parametrize(
    ("gpu", "amount", "device_bytes"), [(GPU, "50%", 5 * GIB), (None, "90%", None), (None, "64MiB", 64 * 2**20)]
)
def test_device_memory_is_a_share_of_what_is_free_and_a_cpu_has_a_limit_only_if_a_size_is_given(gpu, amount, device_bytes):
    assert limits.resolve_limits(MACHINE, gpu, amount, "80%").device_bytes == device_bytes


@pytest.mark.parametrize("amount", ["lots", "-1GiB", "0", 0, "%", "120%", "0%", "nan%"])
def test_malformed_amounts(amount):
    with pytest.raises(ValueError, match="write a percentage up to 100%"):
        limits.validated(amount)


def test_amounts_above_the_total_or_free_memory():
    with pytest.raises(UsageError, match=r"host_memory: 17GiB .*16\.0 GiB"):
        limits.resolve_limits(MACHINE, None, "90%", "17GiB")
    with pytest.raises(UsageError, match=r"device_memory: 11GiB .*10\.0 GiB .* NVIDIA T4"):
        limits.resolve_limits(MACHINE, GPU, "11GiB", "80%")
