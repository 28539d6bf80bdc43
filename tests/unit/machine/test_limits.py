from dataclasses import replace

import pytest

from autofit.backends.tensorflow.backend import TensorFlow
from autofit.errors import UsageError
from autofit.machine import limits
from autofit.records.machine import Device, Machine

GIB = 2**30
MACHINE = Machine("Linux", "3.11", "some CPU", 4, 16 * GIB, 12 * GIB)
GPU = Device(0, "NVIDIA T4", "GPU-1", 16 * GIB, 10 * GIB)
FULL = replace(GPU, free_bytes=GIB, held_by=("python (pid 1) holds 15.0 GiB",))


@pytest.mark.parametrize(
    ("gpu", "device_memory", "host_memory", "device_bytes", "host_bytes"),
    [
        (
            None,
            "90%",
            "50%",
            None,
            8 * GIB,
        ),  # of the total; a CPU has a limit only if a size is given
        (None, "64MiB", "6GiB", 64 * 2**20, 6 * GIB),
        (None, "90%", "6 GB", None, 6 * 10**9),
        (
            GPU,
            "50%",
            "100%",
            5 * GIB,
            12 * GIB,
        ),  # of what is free, and at most what is available
        (
            replace(GPU, free_bytes=int(1.2 * GIB), total_bytes=2 * GIB),
            "1GiB",
            "80%",
            GIB,
            12 * GIB,
        ),
    ],
)
def test_amounts_become_limits(
    gpu, device_memory, host_memory, device_bytes, host_bytes
):
    resolved = limits.resolve_limits(MACHINE, gpu, device_memory, host_memory)
    assert (resolved.device_bytes, resolved.host_bytes) == (device_bytes, host_bytes)


@pytest.mark.parametrize(
    ("capability", "free", "percent", "expected"),
    [
        (
            (8, 9),
            7.6,
            "90%",
            7.6 - 0.488 - 1.5,
        ),  # a card of 8 GiB: 90 % would be more than TensorFlow takes
        ((7, 5), 14.6, "100%", 14.6 - 0.488 - 1.025),
        (
            (8, 6),
            1.9,
            "100%",
            1.9 - 0.488 - 0.22,
        ),  # of less than 2 GiB TensorFlow keeps 225 MiB, whatever the generation
        (None, 8.0, "90%", 7.2),
        ((8, 9), 8.0, "1e-9%", 1 / GIB),  # a byte at least
    ],
)
def test_a_share_is_at_most_what_a_program_without_a_limit_could_use(
    capability, free, percent, expected
):
    gpu = replace(
        GPU,
        free_bytes=int(free * GIB),
        total_bytes=int(free * GIB),
        compute_capability=capability,
    )
    pool = TensorFlow().pool_bytes(gpu)
    assert limits.resolve_limits(
        MACHINE, gpu, percent, "80%", pool
    ).device_bytes == pytest.approx(expected * GIB, rel=0.01)
    assert limits.resolve_limits(MACHINE, gpu, "1GiB", "80%", pool).device_bytes == GIB


@pytest.mark.parametrize("amount", ["lots", "-1GiB", "0", 0, "%", "120%", "0%", "nan%"])
def test_malformed_amounts(amount):
    with pytest.raises(ValueError, match="write a percentage up to 100%"):
        limits.check_amount(amount)


@pytest.mark.parametrize(
    ("gpu", "device_memory", "host_memory", "message"),
    [
        (None, "90%", "17GiB", r"host_memory: 17GiB .*16\.0 GiB"),
        (GPU, "11GiB", "80%", r"device_memory: 11GiB .*10\.0 GiB .* NVIDIA T4"),
        (
            FULL,
            "90%",
            "80%",
            r"device: .*1\.00 GiB of 16\.0 GiB .* NVIDIA T4 \(python \(pid 1\) holds",
        ),
    ],
)
def test_amounts_above_the_total_or_free_memory(
    gpu, device_memory, host_memory, message
):
    with pytest.raises(UsageError, match=message):
        limits.resolve_limits(MACHINE, gpu, device_memory, host_memory)
