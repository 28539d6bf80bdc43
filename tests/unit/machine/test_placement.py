"""Several devices in one training: which are chosen, what they are called, and their locks and
limits.
"""

import re
import tempfile
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.errors import UsageError
from autofit.machine import gpus
from autofit.machine.device_lock import DeviceLock
from autofit.records.machine import ON_CPU, Device, Placement
from tests.unit.machine.test_limits import MACHINE as HOST

T4, FAST, SAME, SLOW = (
    Device(
        index,
        name,
        f"GPU-{index}",
        total * 2**30,
        total * 2**30,
        compute_capability=(capability, 0),
    )
    for index, name, total, capability in (
        (0, "T4", 16, 7),
        (1, "A100", 80, 8),
        (2, "A100", 80, 8),
        (3, "T4", 16, 7),
    )
)
MACHINE = replace(HOST, devices=(T4, FAST, SAME, SLOW))


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.parametrize(
    ("device", "chosen", "name"),
    [
        ("auto", Placement.on(FAST), "A100"),
        ("gpu:3", Placement.on(SLOW), "T4"),
        ("2x gpu", Placement.on(FAST, SAME), "2 x A100"),
        ("gpu:3,0", Placement.on(T4, SLOW), "2 x T4"),
        ("4x cpu", Placement(count=4), "CPU as 4 devices"),
    ],
)
def test_several_gpus_are_of_one_model_and_a_cpu_is_one_device_or_several(
    device, chosen, name
):
    placement = gpus.choose_placement(MACHINE, device)
    assert (placement, placement.name) == (chosen, name)


@pytest.mark.parametrize("device", ["gpu:0,1", "gpu:1,1", "gpu:1,9", "3x gpu"])
def test_placements_that_are_not_possible(device):
    with pytest.raises(
        UsageError,
        match=rf"device: '{device}' .* different GPUs of one model; .* gpu:0 \(T4\), ",
    ):
        gpus.choose_placement(MACHINE, device)
    with pytest.raises(UsageError, match=rf"device: '{device}' .*GPUs: none"):
        gpus.choose_placement(HOST, device)


def test_a_device_has_one_of_a_few_forms():
    assert not any(
        re.match(gpus.DEVICE, device)
        for device in ("tpu", "2", "0x gpu", "gpu:", "gpu:0,", "cpu:0", "2x auto")
    )


@given(st.integers(1, 10_000), st.integers(1, 64))
def test_a_shared_batch_is_the_next_multiple(batch, count):
    shared = Placement(count=count).shared(batch)
    assert shared % count == 0
    assert batch <= shared < batch + count


def test_all_devices_are_locked_or_none():
    with (
        DeviceLock(Placement.on(SAME), "another") as taken,
        DeviceLock(Placement.on(SAME, FAST), "mine") as lock,
    ):
        assert taken.acquire()
        assert not lock.acquire()
        assert "another" in lock.holder()
        with DeviceLock(Placement.on(FAST), "a third") as free:
            assert free.acquire()  # it is not kept meanwhile
        taken.close()
        assert lock.acquire()
        assert not DeviceLock(Placement.on(FAST), "late").acquire()
    assert DeviceLock(Placement.on(FAST), "later").acquire()


def test_the_devices_of_one_cpu_share_its_lock():
    with DeviceLock(Placement(count=2), "a") as lock:
        assert lock.acquire()
        assert not DeviceLock(ON_CPU, "b").acquire()
