"""The commands, run as a user runs them: real trials, exit codes, files and messages."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml

from autofit.machine.device_lock import DeviceLock
from autofit.records.machine import ON_CPU
from tests.recompute import figures_of
from tests.trial.test_lifetime import are_gone, wait_for

pytestmark = pytest.mark.timeout(3000)  # the first test waits for a whole tune

ROOT = Path(__file__).resolve().parents[2]
AUTOFIT = str(Path(sys.executable).parent / "autofit")
WORKLOAD = f"build_model: {ROOT}/tests/workloads.py:build_model\ndata: {ROOT}/tests/workloads.py:"
SMALL = (
    "data_kwargs: {seconds: 0.02, length: 40}\nmax_trials: 3\nstorage: trials.db\n"
    "space: {batch_size: [32, 64], workers: [1, 2], max_queue_size: [4], use_multiprocessing: [false]}\n"
)
MAX_SECONDS = 1200  # of a tune that ends by itself after one or two minutes where nothing else runs


@pytest.fixture
def autofit(tmp_path):
    """Run the command in a folder of its own."""

    def run(*arguments):
        return subprocess.run([AUTOFIT, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=800, check=False)

    return run


def write(folder, text):
    (folder / "tune.yaml").write_text(text)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A folder in which the quickstart has been tuned, and what the command printed: the tune of all tests here."""
    folder, configs = tmp_path_factory.mktemp("tuned"), ROOT / "configs"
    settings = yaml.safe_load((configs / "quickstart.yaml").read_text())
    for key in ("build_model", "data", "validation"):
        file, _, name = settings[key].rpartition(":")
        settings[key] = f"{(configs / file).resolve()}:{name}"
    write(folder, yaml.safe_dump({**settings, "max_trials": 2, "max_seconds": MAX_SECONDS, "storage": "trials.db"}))
    command = [AUTOFIT, "tune", "tune.yaml", "--output", "result.json"]
    return folder, subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=2 * MAX_SECONDS, check=False)


def test_tune_ends_with_a_confirmed_config(tuned):
    folder, done = tuned
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads((folder / "result.json").read_text())
    fastest = result["fastest"]
    assert fastest["confirmed"] or fastest["needed_seconds"] > MAX_SECONDS
    assert fastest["config"] in [trial["config"] for trial in (*result["trials"], *result["runs"])]
    assert result["description"]["parameter_count"] > 1000
    assert {trial["measurement"]["outcome"] for trial in result["trials"]} == {"ok"}
    assert 1 <= len(result["trials"]) <= 4  # at most two more at the own batch size
    assert 0 < fastest["host_peak_bytes"] < result["limits"]["host_bytes"]
    assert f"batch {fastest['config']['batch_size']}, " in done.stdout
    summary = done.stdout[done.stdout.index("baseline  ") :].partition("To train with")[0]
    assert max(map(len, summary.splitlines())) <= 124


def test_every_stated_figure_follows_from_the_readings(tuned):
    folder, _ = tuned
    figures = figures_of(folder / "result.json")
    assert {"rate", "host peak"} < figures.keys()
    for name, (stated, recomputed) in figures.items():
        assert stated == pytest.approx(recomputed, rel=1e-9), name


@pytest.mark.slow
def test_the_pasted_lines_train_and_validate(tuned, tmp_path):
    _, done = tuned
    lines = done.stdout.rpartition("\n\nimport ")[2].partition("\nwritten to")[0]
    ran = subprocess.run(
        [sys.executable, "-c", f"import {lines}"], cwd=tmp_path, capture_output=True, text=True, timeout=800, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "val_accuracy" in ran.stdout


def test_the_same_question_is_answered_at_once(tuned):
    folder, first = tuned
    command = [AUTOFIT, "tune", "tune.yaml", "--quiet"]
    again = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=800, check=False)
    assert again.returncode == 0
    summary = first.stdout[first.stdout.index("baseline  ") :].partition("\nwritten to")[0]
    assert again.stdout.strip() == summary.strip()


def test_show_and_kwargs_read_the_result(tuned):
    folder, _ = tuned
    result = json.loads((folder / "result.json").read_text())

    def run(*arguments):
        return subprocess.run(
            [AUTOFIT, *arguments], cwd=folder, capture_output=True, text=True, timeout=800, check=True
        ).stdout

    assert "samples/s" in run("show", "result.json")
    assert json.loads(run("show", "result.json", "--json")) == result
    assert json.loads(run("kwargs", "result.json", "--format", "json")) == {
        "data_kwargs": result["fastest"]["data_kwargs"],
        "fit_kwargs": result["fastest"]["fit_kwargs"],
        "compile_kwargs": {"steps_per_execution": result["fastest"]["config"]["steps_per_execution"]},
    }
    for arguments, answer in (((), "fastest"), (("--same-batch",), "same_batch")):
        batch_size = result[answer]["config"]["batch_size"]
        assert run("kwargs", "result.json", *arguments).startswith(f"data_kwargs = {{'batch_size': {batch_size}")
    assert "data_kwargs:\n  batch_size: " in run("kwargs", "result.json", "--format", "yaml")


def test_a_bug_of_the_users_ends_with_their_traceback(autofit, tmp_path):
    write(tmp_path, WORKLOAD + "Cases\nspace: {batch_size: [9]}\nbaseline: {batch_size: 9}\nstorage: t.db\n")
    done = autofit("tune", "tune.yaml")
    assert done.returncode == 1
    assert "ValueError: the fifth picture is broken" in done.stderr
    assert "tests/workloads.py" in done.stderr
    assert "autofit/" not in done.stderr.replace(str(ROOT), "")
    assert ": ok" not in done.stdout


@pytest.mark.slow
def test_estimate_prints_json(autofit, tmp_path):
    write(tmp_path, WORKLOAD + "Cases\ndevice_memory: 100MiB\n")
    done = autofit("estimate", "tune.yaml", "--batch-size", "8,4096", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    small, large = told["rows"]
    assert (small["batch_size"], small["fits"], large["batch_size"], large["fits"]) == (8, True, 4096, False)
    assert 0 < sum(small["device_bytes_by_part"].values()) <= small["device_upper_bytes"]
    assert 8 <= told["largest_batch_size"] < 4096


def test_when_nothing_fits_it_says_what_is_needed(autofit, tmp_path):
    write(tmp_path, WORKLOAD + "Cases\nhost_memory: 150MiB\nstorage: t.db\n")
    done = autofit("tune", "tune.yaml")
    assert done.returncode == 1
    for fact in ("a batch of 1 ", " host memory", "150 MiB", "Raise host_memory"):
        assert fact in done.stderr


def start_slow_tune(folder):
    """A tune that is in its second trial."""
    write(folder, WORKLOAD + "Cases\n" + SMALL)
    (folder / "tmp").mkdir()
    process = subprocess.Popen(
        [AUTOFIT, "tune", "tune.yaml"],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a background job of a shell ignores Ctrl-C, and so would its child; no thread runs here that could hold a lock
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    for line in process.stdout:
        if ": ok, " in line:
            break
    return process, wait_for(lambda: len(below := psutil.Process(process.pid).children(recursive=True)) >= 2 and below)


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_a_tune_that_is_ended_leaves_no_process_and_keeps_its_trials(tmp_path, signal_number):
    process, below = start_slow_tune(tmp_path)
    process.send_signal(signal_number)
    wait_for(lambda: are_gone(below))
    _, message = process.communicate(timeout=100)
    assert process.returncode == 128 + signal_number
    assert re.search(r"\b[1-9] finished trials?\b", message)  # further ones may have ended before the signal came
    wait_for(lambda: not [one.name for one in (tmp_path / "tmp").iterdir() if one.suffix != ".lock"])


@pytest.mark.slow
def test_a_device_on_which_another_measures_is_waited_for_or_not(autofit, tuned, tmp_path):
    write(tmp_path, WORKLOAD + "Cases\n" + SMALL)
    with contextlib.ExitStack() as stopped, DeviceLock(ON_CPU, "their_model with their_data") as theirs:
        assert theirs.acquire()
        refused = autofit("tune", "tune.yaml", "--no-wait")
        assert refused.returncode == 1
        assert re.search(rf"pid {os.getpid()}\b.*their_model.*their_data", refused.stderr)
        command = [AUTOFIT, "tune", "tune.yaml", "--quiet"]
        stored = subprocess.run(command, cwd=tuned[0], capture_output=True, text=True, timeout=800, check=False)
        assert stored.returncode == 0
        waiting = subprocess.Popen(
            [AUTOFIT, "tune", "tune.yaml"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  # no thread runs here
        )
        stopped.callback(waiting.communicate)
        stopped.callback(waiting.kill)
        assert f"pid {os.getpid()}" in waiting.stdout.readline()
        theirs.close()
        assert waiting.stdout.readline().startswith("waited ")
        waiting.send_signal(signal.SIGINT)
        waiting.communicate(timeout=100)


SCRIPT = """
import numpy as np, keras, autofit

def build_model():
    model = keras.Sequential([keras.layers.Input((20,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model

x, y = np.ones((3000, 20), "float32"), np.ones((3000, 1), "float32")
result = autofit.tune(
    build_model, (x, y), validation=(x[:64], y[:64]), space={"batch_size": [256]}, baseline={"batch_size": 256},
    storage="t.db", progress=False,
)
history = build_model().fit(x, y, **result.fit_kwargs, verbose=0)
result.save("result.json")
print(result.config.batch_size, sorted(result.fit_kwargs), len(history.history["loss"]))
"""


@pytest.mark.slow
def test_functions_of_main_work_without_a_file_and_the_kwargs_train(tmp_path):
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "256 ['batch_size'] 1"


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_while_the_command_loads_is_no_crash(tmp_path, signal_number):
    write(tmp_path, WORKLOAD + "Cases\n" + SMALL)
    process = subprocess.Popen(
        [AUTOFIT, "tune", "tune.yaml"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal_number, signal.SIG_DFL),  # noqa: PLW1509  # no thread runs here
    )
    wait_for(lambda: "site-packages" in Path(f"/proc/{process.pid}/maps").read_text())  # it loads libraries
    process.send_signal(signal_number)
    _, told = process.communicate(timeout=100)
    assert process.returncode == 128 + signal_number
    assert "Traceback" not in told
    assert "Interrupted; " in told


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
def test_an_output_that_takes_nothing_more_ends_in_one_sentence():
    with open("/dev/full", "w") as full:
        done = subprocess.run([AUTOFIT, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=800, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("autofit: ")
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_terminal_in_ascii_shows_what_it_can(tuned):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [AUTOFIT, "show", "result.json"]
    done = subprocess.run(command, cwd=tuned[0], env=environment, capture_output=True, text=True, timeout=800, check=False)
    assert (done.returncode, done.stderr, "baseline" in done.stdout) == (0, "", True)
