"""What the watcher reads of a process tree.

It reads its pauses, how long one may last, its memory and its phases.
"""

import math
from types import SimpleNamespace

import psutil
import pytest

from autofit.machine.host import ProcessMemory
from autofit.records.states import Phase
from autofit.trial.watcher import Pauses, Watcher, hang_seconds


class Process:
    """Stands for a process of psutil."""

    def __init__(self):
        self.cpu = 5.0
        self.read = 2**20
        self.lives = True

    def cpu_times(self):
        if not self.lives:
            raise psutil.NoSuchProcess(1)
        return (self.cpu - 1, 1.0, 0.0, 0.0)

    def io_counters(self):
        return SimpleNamespace(read_bytes=self.read)


def test_a_pause_lasts_until_a_process_computes_reads_or_ends_and_not_over_a_sleep_of_the_machine():
    one, two = Process(), Process()
    pauses = Pauses()
    tree = [one, two]
    assert [pauses.read(tree, float(now)) for now in range(4)] == [0, 1, 2, 3]
    for now, change in (
        (4.0, {"cpu": 5.2}),
        (6.0, {"read": 2**21}),
        (8.0, {"lives": False}),
    ):
        vars(one).update(change)
        assert [pauses.read(tree, now + seconds) for seconds in (0.0, 1.0)] == [0, 1]
    assert [pauses.read(tree, now) for now in (3600.0, 3601.0)] == [0, 1]
    assert pauses.longest == 3


def test_waking_up_now_and_then_is_no_progress():
    process = Process()
    pauses = Pauses()
    for now in range(20):
        process.cpu += 0.002
        last = pauses.read([process], float(now))
    assert last == 19


@pytest.mark.parametrize(
    ("pauses", "batch", "seconds"),
    [
        ([], 8, math.inf),
        ([(0.1, 8)], 8, 6),
        ([(0.1, 8)], 1, 6),
        ([(0.1, 8)], 800, 50),
        ([(0.1, 8), (8.0, 32)], 8, 40),
    ],
)
def test_the_pause_of_a_hang_is_learnt_and_grows_with_the_batch(pauses, batch, seconds):
    assert hang_seconds(pauses, batch) == pytest.approx(seconds)


def test_the_memory_of_a_tree_is_summed_and_each_phase_has_its_seconds(monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    # the driver knows no processes
    gpu_totals = iter([300, 700, 500])
    server, *below = [
        SimpleNamespace(
            pid=pid,
            memory=ProcessMemory(held, written, held, held),
            status=lambda: psutil.STATUS_RUNNING,
        )
        for pid, held, written in ((1, 100, 60), (2, 50, 50), (3, 10, 0))
    ]
    server.children = lambda recursive=False: below if recursive else below[:1]

    def read(process):
        clock.now += 0.01
        return process.memory

    monkeypatch.setattr(psutil, "Process", lambda pid: server)
    monkeypatch.setattr(ProcessMemory, "of", read)
    monkeypatch.setattr(
        "autofit.trial.watcher.time", SimpleNamespace(monotonic=lambda: clock.now)
    )
    monkeypatch.setattr(
        "autofit.machine.gpus.used_bytes", lambda device, pids: (next(gpu_totals), None)
    )
    watching = Watcher(1, 10**10, 60.0, gpus_used=["a GPU"])
    assert watching.poll() is None
    assert (watching.last_bytes, watching.rest_seconds, watching.driver_peak_bytes) == (
        40 + 50 + 10,
        0.25,
        400,
    )
    clock.now += 1.0
    assert (
        watching.poll() is None
    )  # without another reading of the memory: those take a hundredth of the time
    watching.enter(Phase.FIRST_STEP)
    clock.now += 2.0
    assert watching.readings().seconds_by_phase == pytest.approx(
        {Phase.STARTING: 1.03, Phase.FIRST_STEP: 2.03}
    )
