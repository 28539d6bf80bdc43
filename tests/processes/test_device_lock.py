"""One measurement a device: the lock, with real files and real processes."""

import os
import subprocess
import sys
import tempfile

import pytest

from autofit.machine.device_lock import DeviceLock
from autofit.records.machine import ON_CPU

HOLD = """
import sys
from autofit.machine.device_lock import DeviceLock
from autofit.records.machine import ON_CPU
assert DeviceLock(ON_CPU, "build with data").acquire()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_holder_is_named_and_its_death_releases_the_lock(folder):
    pipes = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "env": {**os.environ, "TMPDIR": str(folder)},
    }
    with (
        subprocess.Popen([sys.executable, "-c", HOLD], **pipes) as other,
        DeviceLock(ON_CPU, "mine") as lock,
    ):
        assert other.stdout.readline() == b"held\n"
        assert not lock.acquire()
        assert lock.holder().startswith(f"pid {other.pid}, build with data, since ")
        other.kill()
        other.wait()
        assert lock.acquire()


def test_a_damaged_or_hostile_note_raises_no_error(folder):
    for note in (b"", b"\xff\xfe", b"\x1b[31mred\n", b"x" * 5000):
        (folder / "autofit-cpu.lock").write_bytes(note)
        holder = DeviceLock(ON_CPU, "mine").holder()
        assert holder.isprintable()
        assert 0 < len(holder) <= 200


def test_a_symlink_is_not_followed_and_the_lock_counts_as_acquired(folder):
    (folder / "precious").write_text("precious")
    (folder / "autofit-cpu.lock").symlink_to(folder / "precious")
    with DeviceLock(ON_CPU, "a") as lock:
        assert lock.acquire()
    assert (folder / "precious").read_text() == "precious"
