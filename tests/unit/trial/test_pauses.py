"""What counts as a pause of a process tree, and how long one may last."""

import math
from types import SimpleNamespace

import psutil

from autofit.records.states import Role
from autofit.records.trial import FitConfig, Limits, TrialSpec
from autofit.trial.watcher import HangDetector, Pauses


class Process:
    """Stands for a process of psutil."""

    def __init__(self, pid=1):
        self.pid, self.cpu, self.read, self.lives = pid, 5.0, 2**20, True

    def cpu_times(self):
        if not self.lives:
            raise psutil.NoSuchProcess(self.pid)
        return SimpleNamespace(user=self.cpu - 1, system=1.0)

    def io_counters(self):
        return SimpleNamespace(read_bytes=self.read)


def spec(batch):
    return TrialSpec(Role.MEASURE, FitConfig(batch), Limits(None, 2**30), 60.0)


def test_a_pause_lasts_until_a_process_computes_or_reads():
    one, two = Process(1), Process(2)
    pauses, tree = Pauses(), [one, two]
    assert [pauses.read(tree, float(now)) for now in range(4)] == [0, 1, 2, 3]
    two.cpu += 0.2
    assert pauses.read(tree, 4.0) == 0
    assert pauses.read(tree, 5.0) == 1
    one.read += 4096
    assert pauses.read(tree, 6.0) == 0
    one.lives = False
    assert pauses.read(tree, 7.0) == 1
    assert pauses.longest == 3


def test_waking_up_now_and_then_is_no_progress():
    process, pauses = Process(), Pauses()
    for now in range(20):
        process.cpu += 0.002
        last = pauses.read([process], float(now))
    assert last == 19


def test_a_machine_that_slept_is_no_hang():
    pauses = Pauses()
    assert [pauses.read([Process()], now) for now in (0.0, 1.0, 3600.0, 3601.0)] == [0, 1, 0, 1]


def test_the_pause_of_a_hang_is_learnt_and_grows_with_the_batch():
    hangs = HangDetector()
    assert hangs.most_idle_seconds(spec(8)) == math.inf
    hangs.learn(spec(8), 0.1)
    assert hangs.most_idle_seconds(spec(8)) == hangs.most_idle_seconds(spec(1)) == 6.0
    assert hangs.most_idle_seconds(spec(800)) == 50.0
    hangs.learn(spec(32), 8.0)
    assert hangs.most_idle_seconds(spec(8)) == 40.0
