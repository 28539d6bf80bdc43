"""What the watcher sees of a tree of real processes, between its readings, too."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from autofit.machine.host import ProcessMemory
from autofit.records.states import Phase
from autofit.trial.watcher import Pauses, StopReason, Watcher

MIB = 2**20
SPIKES = """
held = bytearray(b'x') * {held}
input()
spike = bytearray(b'x') * {spike}
del spike
print(flush=True)
input()
"""
MAPS = """
import mmap, os
def read(path):
    pages = mmap.mmap(os.open(path, os.O_RDONLY), 0, prot=mmap.PROT_READ)
    sum(pages[::4096])
    return pages
library = read({library!r})
data = None if os.fork() else read({data!r})
if data is not None:
    print(flush=True)
input()
"""
FORKS = """
import os
pages = bytearray(b'x') * {size}
if not os.fork():
    for page in range(0, len(pages), 4096):
        pages[page] = 121
    print(flush=True)
input()
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts a process's highest memory")


@pytest.fixture
def python():
    """Start a Python program; returns its process."""
    started = []

    def python(program):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        started.append(subprocess.Popen([sys.executable, "-c", program], **pipes))
        return started[-1]

    yield python
    for process in started:
        for child in psutil.Process(process.pid).children():
            child.kill()
        process.kill()
        process.communicate()


@linux
def test_what_is_held_for_a_moment_between_two_readings_counts_for_the_phase_it_was_in(python):
    process = python(SPIKES.format(held=20 * MIB, spike=200 * MIB))
    watcher = Watcher(process.pid, 300 * MIB, 60.0)
    watcher.poll()
    watcher.enter(Phase.FIRST_STEP)
    process.stdin.write(b"\n")
    process.stdin.flush()
    process.stdout.readline()
    watcher.enter(Phase.TRAINING)
    assert 200 * MIB < watcher.peak_by_phase[Phase.FIRST_STEP] < 280 * MIB
    assert watcher.peak_by_phase[Phase.TRAINING] < 80 * MIB
    assert watcher.peak_bytes == watcher.peak_by_phase[Phase.FIRST_STEP]


@linux
def test_a_moment_beyond_the_limit_is_beyond_it(python):
    process = python(SPIKES.format(held=MIB, spike=200 * MIB))
    watcher = Watcher(process.pid, 150 * MIB, 60.0)
    assert watcher.poll() is None
    process.stdin.write(b"\n")
    process.stdin.flush()
    process.stdout.readline()
    watcher.enter(Phase.TRAINING)
    assert watcher.last_bytes > 150 * MIB
    assert watcher.poll() is StopReason.HOST_LIMIT


@linux
def test_pages_that_a_child_has_written_do_not_count_twice(python):
    process = python(FORKS.format(size=100 * MIB))
    process.stdout.readline()
    watcher = Watcher(process.pid, 2**40, 60.0)
    watcher.poll()
    child = psutil.Process(process.pid).children()[0]
    assert ProcessMemory.of(psutil.Process(process.pid)).written > 100 * MIB
    assert ProcessMemory.of(child).resident > 100 * MIB
    assert 100 * MIB < watcher.last_bytes < 150 * MIB


@linux
def test_files_that_others_map_count_in_full(python, tmp_path):
    library, *data = (tmp_path / name for name in ("library", "data", "data of others"))
    library.write_bytes(bytes(100 * MIB))
    for file in data:
        file.write_bytes(bytes(30 * MIB))
    process, outsider = (python(MAPS.format(library=str(library), data=str(file))) for file in data)
    for each in (process, outsider):
        each.stdout.readline()
    watcher = Watcher(process.pid, 2**40, 60.0)
    watcher.poll()
    assert 130 * MIB < watcher.last_bytes < 160 * MIB


@linux
def test_a_library_just_installed_is_nothing_that_the_server_wrote(python, tmp_path):
    for name in ("library", "data"):
        (tmp_path / name).write_bytes(bytes(60 * MIB))
    process = python(MAPS.format(library=str(tmp_path / "library"), data=str(tmp_path / "data")))
    process.stdout.readline()
    watcher = Watcher(process.pid, 2**40, 60.0)
    watcher.poll()
    assert 120 * MIB < watcher.last_bytes < 150 * MIB


def test_memory_that_the_system_does_not_count_is_what_cannot_be_shared(monkeypatch):
    monkeypatch.setattr("autofit.machine.host._kernel_sizes", lambda pid, name: {})
    memory, counted = ProcessMemory.of(psutil.Process()), psutil.Process(os.getpid()).memory_full_info()
    assert memory.written == 0
    assert memory.highest_resident == memory.resident
    assert memory.proportional == pytest.approx(counted.pss, rel=0.5)  # processes that share pages come and go


@pytest.mark.parametrize(
    ("phase", "pause", "seconds_left", "reason"),
    [
        (Phase.INPUT_ALONE, 5.0, 60.0, None),
        (Phase.INPUT_ALONE, 7.0, 60.0, StopReason.HANG),
        (Phase.INPUT_ALONE, 4.0, 0.0, StopReason.HANG),
        (Phase.INPUT_ALONE, 1.0, 0.0, StopReason.DEADLINE),
        (Phase.TRAINING, 10.5, 60.0, None),  # an allocation that fails is retried for ten seconds
        (Phase.TRAINING, 10.5, 0.0, StopReason.DEADLINE),
        (Phase.TRAINING, 17.0, 60.0, StopReason.HANG),
    ],
)
def test_a_pause_is_a_hang_where_nothing_is_retried(monkeypatch, phase, pause, seconds_left, reason):
    watcher = Watcher(os.getpid(), 2**40, seconds_left, most_idle_seconds=6.0)
    monkeypatch.setattr(watcher.pauses, "read", lambda tree, now: pause)
    watcher.enter(phase)
    assert watcher.poll() is reason


def test_what_was_below_a_server_that_was_killed_is_still_known_and_ended():
    root = subprocess.Popen(["sh", "-c", "sleep 600 & wait"])
    try:
        watcher = Watcher(root.pid, 2**40, 60.0)
        deadline = time.monotonic() + 100
        while not (below := psutil.Process(root.pid).children()) and time.monotonic() < deadline:
            time.sleep(0.01)
        watcher.poll()
        root.kill()
        time.sleep(0.3)  # until the tree is listed again
        watcher.poll()
        watcher.end_known()
        psutil.wait_procs(below, timeout=100)
        assert below
        assert not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in below)
    finally:
        root.wait()


@pytest.mark.parametrize(("headroom", "rest"), [(20e9, 0.25), (1e9, 0.125), (1e6, 0.02)])
def test_the_watcher_rests_the_less_the_nearer_the_limit_is(monkeypatch, headroom, rest):
    watcher = Watcher(os.getpid(), int(2e9 + headroom), 60.0)
    monkeypatch.setattr(watcher, "_growth_bytes", lambda: 0)
    monkeypatch.setattr(watcher, "_read", lambda since: setattr(watcher, "last_bytes", int(2e9)))
    watcher.poll()
    assert watcher.rest_seconds == pytest.approx(rest)


def test_far_from_the_limit_memory_is_read_anew_when_it_has_grown(monkeypatch):
    reads, growth = [], [0]
    watcher = Watcher(os.getpid(), 2**40, 60.0)
    monkeypatch.setattr(watcher, "_growth_bytes", lambda: growth[0])

    def read(since):
        reads.append(time.sleep(0.3))  # it takes so long that the next is due in half a minute
        watcher.last_bytes = 100 * MIB

    monkeypatch.setattr(watcher, "_read", read)
    watcher.poll()
    time.sleep(0.3)
    watcher.poll()
    assert len(reads) == 1
    growth[0] = 10 * MIB
    watcher.poll()
    assert len(reads) == 2


def test_real_processes_are_read():
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        tree, pauses = [psutil.Process(busy.pid)], Pauses()
        pauses.read(tree, 0.0)
        while sum(tree[0].cpu_times()[:2]) < 0.3:
            assert busy.poll() is None
        assert pauses.read(tree, 1.0) == 0
    finally:
        busy.kill()
        busy.communicate()
