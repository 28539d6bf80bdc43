"""What counts as a pause of a process tree, and how long one may last."""

import math
from types import SimpleNamespace

import psutil
import pytest

from autofit.trial.watcher import Pauses, hang_seconds


class Process:
    """Stands for a process of psutil."""

    def __init__(self):
        self.cpu, self.read, self.lives = 5.0, 2**20, True

    def cpu_times(self):
        if not self.lives:
            raise psutil.NoSuchProcess(1)
        return (self.cpu - 1, 1.0, 0.0, 0.0)

    def io_counters(self):
        return SimpleNamespace(read_bytes=self.read)


def test_a_pause_lasts_until_a_process_computes_reads_or_ends_and_not_over_a_sleep_of_the_machine():
    one, two = Process(), Process()
    pauses, tree = Pauses(), [one, two]
    assert [pauses.read(tree, float(now)) for now in range(4)] == [0, 1, 2, 3]
    for now, change in ((4.0, {"cpu": 5.2}), (6.0, {"read": 2**21}), (8.0, {"lives": False})):
        vars(one).update(change)
        assert [pauses.read(tree, now + seconds) for seconds in (0.0, 1.0)] == [0, 1]
    assert [pauses.read(tree, now) for now in (3600.0, 3601.0)] == [0, 1]
    assert pauses.longest == 3


def test_waking_up_now_and_then_is_no_progress():
    process, pauses = Process(), Pauses()
    for now in range(20):
        process.cpu += 0.002
        last = pauses.read([process], float(now))
    assert last == 19


@pytest.mark.parametrize(
    ("pauses", "batch", "seconds"),
    [([], 8, math.inf), ([(0.1, 8)], 8, 6), ([(0.1, 8)], 1, 6), ([(0.1, 8)], 800, 50), ([(0.1, 8), (8.0, 32)], 8, 40)],
)
def test_the_pause_of_a_hang_is_learnt_and_grows_with_the_batch(pauses, batch, seconds):
    assert hang_seconds(pauses, batch) == pytest.approx(seconds)
