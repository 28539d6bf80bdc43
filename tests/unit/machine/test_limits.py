from dataclasses import replace

import psutil
import pytest

from autofit import backends
from autofit.errors import UsageError
from autofit.machine import gpus, host, limits
from autofit.records.machine import Device, Machine

GIB = 2**30
HERE = Machine("Linux", "3.11", "some CPU", 4, 16 * GIB, 12 * GIB)
GPU = Device(0, "NVIDIA T4", "GPU-1", 16 * GIB, 10 * GIB)


def test_this_machine_has_cores_and_memory_that_it_may_use():
    here = host.detect()
    assert here.cores >= 1
    assert 0 < here.available_bytes <= here.memory_bytes <= psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("host_memory", "host_bytes"),
    [("50%", 8 * GIB), ("6GiB", 6 * GIB), ("6 GB", 6 * 10**9), (GIB, GIB), ("100%", 12 * GIB)],
)
def test_host_memory_is_a_share_of_all_but_never_more_than_is_available(host_memory, host_bytes):
    assert limits.resolve_limits(HERE, None, "90%", host_memory).host_bytes == host_bytes


def test_a_share_of_device_memory_is_of_what_is_free():
    assert limits.resolve_limits(HERE, GPU, "50%", "80%").device_bytes == 5 * GIB


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
def test_a_share_is_at_most_what_a_program_without_a_limit_would_have(capability, free, percent, expected):
    gpu = replace(GPU, free_bytes=int(free * GIB), total_bytes=int(free * GIB), compute_capability=capability)
    pool = backends.current().pool_bytes(gpu)
    assert limits.resolve_limits(HERE, gpu, percent, "80%", pool).device_bytes == pytest.approx(expected * GIB, rel=0.01)
    assert limits.resolve_limits(HERE, gpu, "1GiB", "80%", pool).device_bytes == GIB


def test_a_gpu_that_others_have_filled_is_said_before_anything_runs():
    full = replace(GPU, free_bytes=GIB, held_by=("python (pid 1) holds 15.0 GiB",))
    with pytest.raises(
        UsageError, match=r"device: only 1\.00 GiB of 16\.0 GiB are free on NVIDIA T4 \(python \(pid 1\) holds"
    ):
        limits.resolve_limits(HERE, full, "90%", "80%")
    small = replace(GPU, free_bytes=int(1.2 * GIB), total_bytes=2 * GIB)
    assert limits.resolve_limits(HERE, small, "90%", "80%").device_bytes


def test_a_cpu_has_a_device_limit_only_when_a_size_is_asked_for():
    assert limits.resolve_limits(HERE, None, "90%", "80%").device_bytes is None
    assert limits.resolve_limits(HERE, None, "64MiB", "80%").device_bytes == 64 * 2**20


@pytest.mark.parametrize("amount", ["lots", "-1GiB", "0", 0, "%", "120%", "0%"])
def test_what_is_no_amount_of_memory_is_said(amount):
    with pytest.raises(UsageError, match="host_memory"):
        limits.resolve_limits(HERE, None, "90%", amount)


def test_more_than_there_is_is_said():
    with pytest.raises(UsageError, match=r"17GiB is more than the 16\.0 GiB"):
        limits.resolve_limits(HERE, None, "90%", "17GiB")
    with pytest.raises(UsageError, match=r"11GiB is more than the 10\.0 GiB of .* free on NVIDIA T4"):
        limits.resolve_limits(HERE, GPU, "11GiB", "80%")


def test_auto_is_the_gpu_that_cuda_numbers_first(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    display = replace(GPU, name="NVIDIA T400", total_bytes=4 * GIB, compute_capability=(7, 5))
    large = replace(GPU, index=1, name="NVIDIA A6000", total_bytes=48 * GIB, compute_capability=(8, 6))
    both = replace(HERE, devices=(display, large, replace(large, index=2)))
    assert gpus.choose_device(both, "auto") == gpus.choose_device(both, "gpu") == large
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    assert gpus.choose_device(both, "auto") == display


def test_auto_is_the_first_gpu_or_the_cpu():
    assert gpus.choose_device(HERE, "auto") is None
    both = replace(HERE, devices=(GPU, replace(GPU, index=1)))
    assert gpus.choose_device(both, "auto") == GPU
    assert gpus.choose_device(both, "gpu:1").index == 1
    assert gpus.choose_device(both, "cpu") is None


@pytest.mark.parametrize(
    ("device", "told"), [("gpu", "'gpu' .*GPUs: none"), ("gpu:3", "'gpu:3' .*GPUs: none"), ("tpu", "'tpu' is not one of")]
)
def test_a_device_that_is_not_there_is_said(device, told):
    with pytest.raises(UsageError, match=told):
        gpus.choose_device(HERE, device)


@pytest.mark.parametrize(("allocator", "count"), [("cuda_malloc_async", 1), ("cuda_malloc", 1), ("bfc", 0), (None, 0)])
def test_an_allocator_that_no_limit_holds_is_said_where_there_is_a_gpu(allocator, count, monkeypatch):
    monkeypatch.delenv("TF_GPU_ALLOCATOR", raising=False)
    if allocator is not None:
        monkeypatch.setenv("TF_GPU_ALLOCATOR", allocator)
    assert len(backends.current().problems(GPU, GIB)) == count
    assert backends.current().problems(None, None) == ()
