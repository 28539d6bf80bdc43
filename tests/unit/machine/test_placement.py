"""Several devices in one training: which are chosen, what they are called, and their locks and limits."""

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
    Device(index, name, f"GPU-{index}", total * 2**30, total * 2**30, compute_capability=(capability, 0))
    for index, name, total, capability in ((0, "T4", 16, 7), (1, "A100", 80, 8), (2, "A100", 80, 8), (3, "T4", 16, 7))
)
MACHINE = replace(HOST, devices=(T4, FAST, SAME, SLOW))


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.parametrize(
    ("device", "devices", "chosen"),
    [
        ("auto", None, [FAST]),
        ("auto", 1, [FAST]),
        ("gpu:3", 1, [SLOW]),
        ("auto", 2, [FAST, SAME]),
        ("auto", [3, 0], [SLOW, T4]),
        ("gpu", [2], [SAME]),
    ],
)
def test_gpus_of_one_model_come_first_and_selected_ones_keep_their_order(device, devices, chosen):
    assert gpus.choose_placement(MACHINE, device, devices) == Placement.on(*chosen)


def test_a_cpu_is_one_device_or_several():
    assert gpus.choose_placement(MACHINE, "cpu", None) == ON_CPU
    assert gpus.choose_placement(HOST, "cpu", 4) == Placement(count=4)


@pytest.mark.parametrize(
    ("device", "devices", "error"),
    [
        ("gpu:1", 2, r"devices: .* 2 .*gpu:1"),
        ("cpu", [0, 1], r"devices: \[0, 1\] .* cpu"),
        ("auto", [1, 1], r"devices: \[1, 1\] "),
        ("auto", [0, 9], "device: 'gpu:9' "),
        ("auto", 5, r"devices: 5 GPUs .*: gpu:0 \(T4\), .* device: cpu"),
        ("gpu", 3, r"only 2 of gpu:0 \(T4\), .* are of the model A100\. .*devices: \[0, 1, 2\]"),
    ],
)
def test_placements_that_are_not_possible(device, devices, error):
    with pytest.raises(UsageError, match=error):
        gpus.choose_placement(MACHINE, device, devices)


@pytest.mark.parametrize(
    ("placement", "name"),
    [
        (ON_CPU, "CPU"),
        (Placement(count=2), "CPU as 2 devices"),
        (Placement.on(T4), "T4"),
        (Placement.on(FAST, SAME), "2 x A100"),
        (Placement.on(FAST, T4), "A100 + T4"),
        (Placement.on(FAST, SAME, T4), "2 x A100 + T4"),
    ],
)
def test_a_placement_has_a_name(placement, name):
    assert placement.name == name


@given(st.integers(1, 10_000), st.integers(1, 64))
def test_a_shared_batch_is_the_next_multiple(batch, count):
    shared = Placement(count=count).shared(batch)
    assert shared % count == 0
    assert batch <= shared < batch + count


def test_all_devices_are_locked_or_none():
    with DeviceLock(Placement.on(SAME), "another") as taken, DeviceLock(Placement.on(SAME, FAST), "mine") as lock:
        assert taken.acquire()
        assert not lock.acquire()
        assert "another" in lock.holder()
        with DeviceLock(Placement.on(FAST), "a third") as free:
            assert free.acquire()  # it is not kept meanwhile
        taken.release()
        assert lock.acquire()
        assert not DeviceLock(Placement.on(FAST), "late").acquire()
    assert DeviceLock(Placement.on(FAST), "later").acquire()


def test_the_devices_of_one_cpu_share_its_lock():
    with DeviceLock(Placement(count=2), "a") as lock, DeviceLock(ON_CPU, "b") as other:
        assert lock.acquire()
        assert not other.acquire()
