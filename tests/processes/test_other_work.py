"""Other work on the machine: a real process that uses a core is counted, and one of ours is not."""

import subprocess
import sys
import time

import psutil
import pytest

from autofit.machine import host
from autofit.records.trial import Conditions


@pytest.fixture
def spinning():
    """A process that uses a core."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield psutil.Process(process.pid)
    process.kill()
    process.wait()


def test_a_core_used_by_another_process_is_other_work_unless_the_process_is_ours(
    spinning,
):
    trees = ((), [spinning])
    before = [host.CoreSeconds.read(tree) for tree in trees]
    started = spinning.cpu_times().user
    while (
        spinning.cpu_times().user < started + 0.5
    ):  # beside other work, it may get a small part of a core
        time.sleep(0.05)
    shares = [
        host.other_and_idle_cores(each, host.CoreSeconds.read(tree))
        for each, tree in zip(before, trees, strict=True)
    ]
    (other, _), (with_ours, _) = shares
    assert with_ours < other


def test_time_that_is_neither_idle_nor_ours_is_other_work(monkeypatch):
    monkeypatch.setattr(host, "visible_cores", lambda: 4)
    before = host.CoreSeconds(100.0, 50.0, 10.0, 90.0)
    assert host.other_and_idle_cores(
        before, host.CoreSeconds(102.0, 53.0, 13.0, 98.0)
    ) == (
        1.0,
        1.5,
    )
    assert host.other_and_idle_cores(
        before, host.CoreSeconds(102.0, 60.0, 19.0, 98.0)
    ) == (
        0.0,
        4.0,
    )  # counted later
    assert [
        host.other_and_idle_cores(before, before._replace(at=at))
        for at in (100.0, 102.0)
    ] == [
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("other", "idle", "is_disturbed"),
    [(0.1, 0.0, False), (1.0, 2.0, False), (3.5, 0.5, True)],
)
def test_work_beside_idle_cores_may_be_left_out(monkeypatch, other, idle, is_disturbed):
    monkeypatch.setattr(host, "visible_cores", lambda: 4)
    monkeypatch.setattr(host, "_SAMPLE_SECONDS", 0.0)
    monkeypatch.setattr(
        host, "other_and_idle_cores", lambda before, after: (other, idle)
    )
    assert Conditions(4, other, idle).is_disturbed is is_disturbed
    assert (host.other_work(beside_idle_cores=False) is not None) is is_disturbed
    assert (host.other_work() is not None) is (other >= 1)
    monkeypatch.setattr(
        host, "other_and_idle_cores", lambda before, after: None
    )  # a kernel that counts nothing
    assert host.other_work() is None
