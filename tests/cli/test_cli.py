"""The commands, run as a user runs them: real trials, exit codes, files and messages."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from autofit.machine.device_lock import DeviceLock
from autofit.records.machine import ON_CPU
from tests.commands import AUTOFIT, ROOT, run
from tests.trial.test_lifetime import are_gone, wait_for

RESULT = f"{ROOT}/tests/data/pinned/result.json"
WORKLOAD = f"build_model: {ROOT}/tests/workloads.py:build_model\ndata: {ROOT}/tests/workloads.py:"
SMALL = (
    "data_kwargs: {seconds: 0.02, length: 40}\nmax_trials: 3\nstorage: trials.db\n"
    "space: {batch_size: [32, 64], workers: [1, 2], max_queue_size: [4], use_multiprocessing: "
    "[false]}\n"
)


@pytest.fixture
def autofit(tmp_path):
    """Run the command in a folder of its own."""
    return lambda *arguments: run(AUTOFIT, *arguments, folder=tmp_path)


def write(folder, text):
    (folder / "tune.yaml").write_text(text)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem
)
def test_check_accepts_each_shipped_file(autofit, path):
    done = autofit("check", str(path))

    assert (done.returncode, "nothing was run" in done.stdout) == (0, True), done.stderr


def test_estimate_prints_json(autofit, tmp_path):
    write(tmp_path, WORKLOAD + "Cases\ndevice_memory: 100MiB\n")
    done = autofit("estimate", "tune.yaml", "--batch-size", "8,4096", "--json")
    assert done.returncode == 0, done.stderr
    small, large = json.loads(done.stdout)["rows"]
    assert (small["batch_size"], small["fits"], large["batch_size"], large["fits"]) == (
        8,
        True,
        4096,
        False,
    )


def start(folder, number):
    """A tune that a signal of this number ends, as if it was started from a terminal."""
    write(folder, WORKLOAD + "Cases\n" + SMALL)
    (folder / "tmp").mkdir()
    return subprocess.Popen(
        [AUTOFIT, "tune", "tune.yaml"],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a background job of a shell ignores Ctrl-C, and so would its child
        # no thread here could hold a lock
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # noqa: PLW1509
    )


def test_a_tune_that_is_ended_leaves_no_process_and_no_file(tmp_path):
    process = start(tmp_path, signal.SIGTERM)
    assert any(": ok, " in line for line in process.stdout)
    below = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    wait_for(lambda: are_gone(below))
    _, message = process.communicate(timeout=100)
    assert (process.returncode, "Finished trials are kept" in message) == (
        128 + signal.SIGTERM,
        True,
    )
    wait_for(
        lambda: (
            not [
                one.name
                for one in (tmp_path / "tmp").iterdir()
                if one.suffix != ".lock"
            ]
        )
    )


def test_a_device_on_which_another_measures_is_waited_for_or_not(autofit, tmp_path):
    write(tmp_path, WORKLOAD + "Cases\n" + SMALL)
    with DeviceLock(ON_CPU, "their_model with their_data") as theirs:
        assert theirs.acquire()
        refused = autofit("tune", "tune.yaml", "--no-wait")
        assert refused.returncode == 1
        assert re.search(
            rf"pid {os.getpid()}\b.*their_model.*their_data", refused.stderr
        )
        waiting = subprocess.Popen(
            [AUTOFIT, "tune", "tune.yaml"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert f"pid {os.getpid()}" in waiting.stdout.readline()
            theirs.close()
            assert waiting.stdout.readline().startswith("waited ")
        finally:
            waiting.terminate()
            waiting.communicate(timeout=100)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_while_the_command_loads_is_no_crash(tmp_path, number):
    process = start(tmp_path, number)
    wait_for(
        lambda: "site-packages" in Path(f"/proc/{process.pid}/maps").read_text()
    )  # it loads libraries
    process.send_signal(number)
    _, message = process.communicate(timeout=100)
    assert process.returncode == 128 + number
    assert "Traceback" not in message
    assert "Interrupted; " in message


def test_a_terminal_in_ascii_shows_what_it_can(autofit, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = autofit("show", str(ROOT / "tests" / "data" / "pinned" / "result.json"))
    assert (done.returncode, done.stderr, "baseline" in done.stdout) == (0, "", True)


@pytest.mark.parametrize(
    "command", [["schema"], ["kwargs", RESULT], ["show", RESULT], ["--help"]]
)
def test_a_full_standard_output_is_one_line(command):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [AUTOFIT, *command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=100,
            check=False,
        )
    assert done.returncode == 1
    problem = "autofit: standard output cannot be written: No space left on device\n"
    assert done.stderr == problem
