"""Other work on the machine: a real process that uses a core is counted, and one of ours is not."""

import subprocess
import sys
import time

import psutil
import pytest

from autofit.machine import host
from autofit.records.trial import Conditions
from autofit.trial import watcher

SECONDS = 1.0


@pytest.fixture
def spinning():
    """A process that uses a core."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield psutil.Process(process.pid)
    process.kill()
    process.wait()


def cores_between(*trees):
    """What `other_and_idle_cores` returns if these processes are ours, all at the same time."""
    before = [host.CoreSeconds.read(tree) for tree in trees]
    time.sleep(SECONDS)
    return [host.other_and_idle_cores(each, host.CoreSeconds.read(tree)) for each, tree in zip(before, trees, strict=True)]


def test_a_core_used_by_another_process_is_other_work_unless_the_process_is_ours(spinning):
    (other, _), (with_ours, _) = cores_between([], [spinning])
    assert with_ours < other - 0.1  # beside other work, it may get a small part of a core


def test_busy_processes_are_named(spinning, monkeypatch):
    monkeypatch.setattr(host, "BUSY_SHARE", 0.0)  # one busy core of many is little
    monkeypatch.setattr(host, "_LEAST_CORES", 0.01)
    monkeypatch.setattr(host, "_NAMED_PROCESSES", 10_000)
    assert f"(pid {spinning.pid})" in host.other_work()


def test_time_that_is_neither_idle_nor_ours_is_other_work(monkeypatch):
    monkeypatch.setattr(host, "visible_cores", lambda: 4)
    before = host.CoreSeconds(100.0, 50.0, 10.0, 90.0)
    assert host.other_and_idle_cores(before, host.CoreSeconds(102.0, 53.0, 13.0, 98.0)) == (1.0, 1.5)
    assert host.other_and_idle_cores(before, host.CoreSeconds(102.0, 60.0, 19.0, 98.0)) == (0.0, 4.0)  # counted later
    assert host.other_and_idle_cores(before, before) is None


def test_work_beside_idle_cores_may_be_left_out(monkeypatch):
    monkeypatch.setattr(host, "visible_cores", lambda: 4)
    monkeypatch.setattr(host, "other_and_idle_cores", lambda before, after: (1.0, 2.0))
    assert host.other_work().startswith("other work uses 1.0 of 4 cores")
    assert host.other_work(beside_idle_cores=False) is None
    monkeypatch.setattr(host, "other_and_idle_cores", lambda before, after: (3.5, 0.5))
    assert host.other_work(beside_idle_cores=False).startswith("other work uses 3.5 of 4 cores")


@pytest.mark.parametrize("factor", [0.0, 1.0])  # zeros, and counts that stand still
def test_a_kernel_that_counts_nothing_does_not_show_other_work(monkeypatch, factor):
    still = [type(times)(*(factor * seconds for seconds in times)) for times in psutil.cpu_times(percpu=True)]
    monkeypatch.setattr(host.psutil, "cpu_times", lambda percpu: still)
    assert cores_between([]) == [None]
    assert host.other_work() is None
    timed = watcher._TimedConditions()
    for _ in range(2):
        timed.read([], is_timed=True)
    assert (timed.conditions().other_cores, timed.conditions().is_disturbed) == (None, False)


@pytest.mark.parametrize(
    ("other", "idle", "is_disturbed"),
    [(0.05, 0.0, False), (0.5, 0.1, True), (0.5, 1.2, False), (None, None, False), (1.0, None, False)],
)
def test_other_work_disturbs_if_no_core_is_idle(other, idle, is_disturbed):
    assert Conditions(2, other, idle).is_disturbed is is_disturbed
