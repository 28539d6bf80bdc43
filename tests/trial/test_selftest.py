"""The self-test for GPU machines runs on every machine, and says what it cannot check there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from autofit.machine import gpus

SELFTEST = Path(__file__).resolve().parents[1] / "gpu" / "selftest.py"


def run(*arguments):
    return subprocess.run([sys.executable, SELFTEST, *arguments], capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.slow
def test_each_check_is_a_line(tmp_path):
    done = run("--checks", "fork,context", "--out", tmp_path)
    _, fork, context = (json.loads(line) for line in done.stdout.splitlines())
    assert (done.returncode, fork["name"], fork["ok"]) == (0, "fork", True)
    assert context["ok"] is (True if gpus.nvidia_devices() else None)
    assert len((tmp_path / "selftest.jsonl").read_text().splitlines()) == 2


def test_without_time_nothing_is_begun(tmp_path):
    done = run("--checks", "fork", "--minutes", "0", "--out", tmp_path)
    assert json.loads(done.stdout.splitlines()[-1])["got"] == "not begun: the minutes are over"


def test_an_unknown_check_is_an_error(tmp_path):
    done = run("--checks", "forks", "--out", tmp_path)
    assert (done.returncode, "no such check: forks" in done.stderr) == (2, True)
