"""What the watcher sees of a tree of real processes, between its readings, too."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from autofit.machine.host import ProcessMemory
from autofit.records.states import Phase
from autofit.trial.watcher import Breach, Watcher

MIB = 2**20
SPIKES = """
held = bytearray(b'x') * {held}
print(flush=True)
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
# the server, and a trial in a process group of its own; Python starts a resource tracker for it
SHARES = """
import multiprocessing, os, time
from multiprocessing import shared_memory
if not os.fork():
    os.setpgid(0, 0)
    segment = shared_memory.SharedMemory(create=True, size=4096)
    lock = multiprocessing.get_context("spawn").Lock()
    print(segment.name, 'sem.' + lock._semlock.name.strip('/'), os.getpid(), flush=True)
    time.sleep(600)
time.sleep(600)
"""


@pytest.fixture
def python():
    """Start a Python program, and wait until it prints a line; returns its process."""
    started = []

    def python(program):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        started.append(subprocess.Popen([sys.executable, "-c", program], **pipes))
        started[-1].stdout.readline()
        return started[-1]

    yield python
    for process in started:
        for child in psutil.Process(process.pid).children():
            child.kill()
        process.kill()
        process.communicate()


def test_what_is_held_for_a_moment_between_two_readings_counts_for_its_phase_and_for_the_limit(
    python,
):
    process = python(SPIKES.format(held=20 * MIB, spike=200 * MIB))
    watcher = Watcher(process.pid, 150 * MIB, 60.0)
    assert watcher.poll() is None
    watcher.enter(Phase.FIRST_STEP)
    process.stdin.write(b"\n")
    process.stdin.flush()
    process.stdout.readline()
    watcher.enter(Phase.TRAINING)
    assert 195 * MIB < watcher.peak_by_phase[Phase.FIRST_STEP] < 280 * MIB
    assert watcher.peak_by_phase[Phase.TRAINING] < 80 * MIB
    assert watcher.peak_bytes == watcher.peak_by_phase[Phase.FIRST_STEP]
    assert watcher.poll() is Breach.HOST_LIMIT


def test_pages_that_a_child_has_written_do_not_count_twice(python):
    process = python(FORKS.format(size=100 * MIB))
    watcher = Watcher(process.pid, 2**40, 60.0)
    watcher.poll()
    child = psutil.Process(process.pid).children()[0]
    assert ProcessMemory.of(psutil.Process(process.pid)).written > 100 * MIB
    assert ProcessMemory.of(child).resident > 100 * MIB
    assert 100 * MIB < watcher.last_bytes < 150 * MIB


def test_files_that_are_mapped_count_until_they_are_on_disk(python, tmp_path):
    library = tmp_path / "library"
    data = tmp_path / "data"
    for file, size in ((library, 100), (data, 30)):
        file.write_bytes(bytes(size * MIB))
    process = python(MAPS.format(library=str(library), data=str(data)))
    watcher = Watcher(process.pid, 2**40, 60.0)
    os.sync()
    watcher.poll()
    assert watcher.last_bytes < 30 * MIB


@pytest.mark.parametrize(
    ("phase", "pause", "seconds_left", "reason"),
    [
        (Phase.INPUT_ALONE, 7.0, 60.0, Breach.HANG),
        (Phase.INPUT_ALONE, 4.0, 0.0, Breach.HANG),
        (Phase.INPUT_ALONE, 1.0, 0.0, Breach.DEADLINE),
        (
            Phase.TRAINING,
            10.5,
            60.0,
            None,
        ),  # an allocation that fails is retried for ten seconds
        (Phase.TRAINING, 10.5, 0.0, Breach.DEADLINE),
        (Phase.TRAINING, 17.0, 60.0, Breach.HANG),
    ],
)
def test_a_pause_is_a_hang_where_nothing_is_retried(
    monkeypatch, phase, pause, seconds_left, reason
):
    watcher = Watcher(os.getpid(), 2**40, seconds_left, most_idle_seconds=6.0)
    monkeypatch.setattr(watcher.pauses, "read", lambda tree, now: pause)
    watcher.enter(phase)
    assert watcher.poll() is reason


def test_what_was_below_a_server_that_was_killed_is_still_known_and_ended():
    root = subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo; wait"], stdout=subprocess.PIPE
    )
    with root:
        root.stdout.readline()
        watcher = Watcher(root.pid, 2**40, 60.0)
        watcher.poll()
        (below,) = psutil.Process(root.pid).children()
        root.kill()
        time.sleep(0.3)  # until the tree is listed again
        watcher.poll()
        watcher.end(root.pid)
        assert not below.is_running() or below.status() == psutil.STATUS_ZOMBIE


def test_shared_memory_and_semaphores_of_a_trial_that_is_ended_are_removed():
    root = subprocess.Popen(
        [sys.executable, "-c", SHARES], stdout=subprocess.PIPE, text=True
    )
    with root:
        *files, trial = root.stdout.readline().split()
        watcher = Watcher(root.pid, 2**40, 60.0)
        watcher.poll()
        below = psutil.Process(root.pid).children(recursive=True)
        shared = Path("/dev/shm")
        assert all((shared / file).exists() for file in files)
        # the trial and its tracker
        assert len(below) == 2
        watcher.end(int(trial))
        left = [file for file in files if (shared / file).exists()]
        ended = [
            not each.is_running() or each.status() == psutil.STATUS_ZOMBIE
            for each in below
        ]
        root.kill()
    assert not left
    assert all(ended)
