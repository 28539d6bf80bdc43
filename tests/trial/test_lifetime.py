"""No process outlives its driver, however the driver ends."""

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest

from autofit.errors import TrialProcessError
from autofit.records.states import Outcome, Phase, Role
from autofit.records.trial import FitConfig, Limits, TrialSpec
from autofit.trial import launcher as launcher_module
from autofit.trial import server as server_module
from autofit.trial.launcher import ProcessLauncher
from autofit.workload.workload import Workload
from tests import workloads as w
from tests.fakes import drain

pytestmark = pytest.mark.slow

DRIVER = """
import sys
sys.path.insert(0, {root!r})
from autofit.records.trial import Role, FitConfig, Limits, TrialSpec
from autofit.trial.launcher import ProcessLauncher
from autofit.workload.workload import Workload
from tests import workloads

workload = Workload(workloads.build_model, workloads.Cases, data_kwargs={{"seconds": 0.2, "length": 1000}})
launcher = ProcessLauncher(workload, None, {launch!r})
spec = TrialSpec(Role.MEASURE, FitConfig(8, 3, 4, True), Limits(None, 2**33), 600, 60.0)
for phase in launcher.run(spec):
    print(phase, flush=True)
"""


@pytest.fixture
def driver(request):
    """A driver in mid-trial, its pool of three worker processes alive; yields it and everything below it."""
    root, launch = str(Path(__file__).resolve().parents[2]), getattr(request, "param", "fork")
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER.format(root=root, launch=launch)], stdout=subprocess.PIPE, text=True
    )
    for line in process.stdout:
        if line.strip() == "input_alone":
            break
    below = wait_for(lambda: (found := psutil.Process(process.pid).children(recursive=True)) and len(found) >= 5 and found)
    yield process, below
    process.kill()
    process.wait()
    process.stdout.close()
    for one in below:
        if alive(one):
            one.kill()


@pytest.fixture(scope="module")
def living():
    """A launcher whose server starts anew where a test has ended it."""
    with ProcessLauncher(Workload(w.build_model, w.Cases), None) as launcher:
        yield launcher


@pytest.fixture
def launcher(living):
    """The same with the usual workload and a server that is ready."""
    living.change(Workload(w.build_model, w.Cases))
    living.warm()
    return living


def begun(launcher, config):
    """A trial that hangs in its data, alone in the input pipeline."""
    running = launcher.run(TrialSpec(Role.MEASURE, config, Limits(None, 2**33), 600))
    for phase in running:
        if phase == Phase.INPUT_ALONE:
            return running
    raise AssertionError("the trial ended before")


def is_server(process):
    with contextlib.suppress(psutil.Error):  # a short-lived child of the driver that has just ended
        return "autofit.trial.server" in str(process.cmdline())
    return False


def alive(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        result = condition()
        if result:
            return result
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


@pytest.mark.parametrize("driver", ["fork", "plain"], indirect=True)
def test_when_the_driver_is_killed_everything_is_gone(driver):
    process, below = driver
    folder = next(arg for arg in psutil.Process(below[0].pid).cmdline() if "autofit-" in arg)
    assert Path(folder).is_dir()
    process.kill()
    wait_for(lambda: not any(alive(one) for one in below))
    wait_for(lambda: not Path(folder).exists())


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_when_the_driver_is_killed_while_the_server_imports_everything_is_gone_too(seconds):
    root = str(Path(__file__).resolve().parents[2])
    process = subprocess.Popen([sys.executable, "-c", DRIVER.format(root=root, launch="fork")], stdout=subprocess.DEVNULL)
    driver = psutil.Process(process.pid)
    server = wait_for(lambda: next((one for one in driver.children() if is_server(one)), None))
    folder = next(arg for arg in server.cmdline() if "autofit-tune-" in arg)
    time.sleep(0.1 + seconds)
    below = driver.children(recursive=True)
    process.kill()
    process.wait()
    wait_for(lambda: not any(alive(one) for one in below))
    wait_for(lambda: not Path(folder).exists())


def test_when_the_trial_server_is_killed_too_the_trial_is_gone(driver):
    process, below = driver
    server = next(one for one in below if one.ppid() == process.pid and is_server(one))
    trials = [one for one in below if one.ppid() == server.pid]
    folder = next(arg for arg in server.cmdline() if "autofit-" in arg)
    process.send_signal(signal.SIGSTOP)
    server.kill()
    wait_for(lambda: not any(alive(one) for one in trials))
    process.kill()
    process.wait()
    wait_for(lambda: not Path(folder).exists())


def test_when_the_driver_is_killed_a_server_that_is_stopped_is_ended_with_all_below_it(driver):
    process, below = driver
    server = next(one for one in below if one.ppid() == process.pid and is_server(one))
    folder = next(arg for arg in server.cmdline() if "autofit-" in arg)
    server.suspend()
    process.kill()
    process.wait()
    wait_for(lambda: not any(alive(one) for one in below))
    wait_for(lambda: not Path(folder).exists())


def test_a_lost_trial_server_is_noticed_and_replaced(launcher, play):
    running = begun(launcher, FitConfig(w.HANGS, 1, 10, False))
    trials = psutil.Process(launcher._server.pid).children()
    os.kill(launcher._server.pid, signal.SIGKILL)
    _, measurement = drain(running)
    assert measurement.outcome is Outcome.CRASHED
    assert measurement.evidence.server_lost
    wait_for(lambda: not any(alive(one) for one in trials))
    assert play(launcher, FitConfig(8, 1, 10, False)).outcome is Outcome.OK


def test_a_folder_that_is_removed_in_mid_tune_is_said_to_be(start, play):
    launcher = start()
    launcher.warm()
    shutil.rmtree(launcher._folder.path)
    with pytest.raises(TrialProcessError, match="TMPDIR"):
        play(launcher, FitConfig(8, 1, 10, False))


def test_what_a_trial_writes_to_temporary_files_goes_with_its_tune(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    spec = TrialSpec(Role.DESCRIBE, FitConfig(8), Limits(None, 2**33), 600.0)
    with ProcessLauncher(Workload(functools.partial(w.build_model, xla=True), w.Cases), None) as launcher:
        drain(launcher.run(spec))
        assert list(launcher._folder.temporary.iterdir())  # TensorFlow's and XLA's
        assert list(tmp_path.iterdir()) == [launcher._folder.path]
    assert list(tmp_path.iterdir()) == []


def test_a_python_that_cannot_be_started_is_named_and_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(TrialProcessError, match="/nowhere/python"), ProcessLauncher(Workload(w.build_model, w.Cases), None):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_backend_that_cannot_be_imported_is_shown_without_frames_of_ours(monkeypatch, tmp_path):
    (tmp_path / "keras").mkdir()
    (tmp_path / "keras" / "__init__.py").write_text("raise ImportError('libsomething.so: cannot open')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with ProcessLauncher(Workload(w.build_model, w.Cases), None) as launcher, pytest.raises(TrialProcessError) as error:
        launcher.warm()
    assert "ImportError: libsomething.so: cannot open" in str(error.value)
    assert "autofit/" not in str(error.value)


def test_a_run_that_is_broken_off_ends_its_trial(launcher):
    running = begun(launcher, FitConfig(w.HANGS, 2, 4, True))
    below = psutil.Process(launcher._server.pid).children(recursive=True)
    assert below
    running.close()
    assert not any(alive(one) for one in below)


def test_a_server_that_does_not_answer_is_ended_after_the_deadline(monkeypatch):
    monkeypatch.setattr(launcher_module, "_SERVER_SECONDS", 1.0)
    workload = Workload(w.build_model, w.Cases, data_kwargs={"seconds": 0.5, "length": 1000})
    with ProcessLauncher(workload, None) as launcher:
        launcher.warm()
        server = psutil.Process(launcher._server.pid)
        spec = TrialSpec(Role.MEASURE, FitConfig(8, 1, 10, False), Limits(None, 2**33), 5.0, 60.0)
        running = launcher.run(spec)
        next(running)
        server.send_signal(signal.SIGSTOP)
        _, measured = drain(running)
        assert measured.outcome is Outcome.TIMEOUT
        assert not alive(server)


def test_a_server_that_stops_is_noticed_before_and_after_a_trial(monkeypatch):
    monkeypatch.setattr(server_module, "_STILL_SECONDS", 2.0)
    with ProcessLauncher(Workload(w.build_model, w.Cases), None) as launcher:
        threading.Timer(0.5, lambda: launcher._server.pid and os.kill(launcher._server.pid, signal.SIGSTOP)).start()
        with pytest.raises(TrialProcessError):
            launcher.warm()
        spec = TrialSpec(Role.MEASURE, FitConfig(8, 1, 10, False), Limits(None, 2**33), 600, 0.5)
        running = launcher.run(spec)
        for phase in running:
            if phase == Phase.TRAINING:
                break
        server = psutil.Process(launcher._server.pid)
        server.send_signal(signal.SIGSTOP)
        assert drain(running)[1].outcome is Outcome.OK  # it had sent all its readings
        assert not alive(server)


def test_a_server_that_was_killed_between_two_trials_is_replaced(launcher, play):
    os.kill(launcher._server.pid, signal.SIGKILL)
    assert play(launcher, FitConfig(8, 1, 10, False)).outcome is Outcome.OK


def test_what_the_users_code_left_in_a_session_of_its_own_ends_with_a_server_that_is_killed(launcher, tmp_path):
    launcher.change(Workload(w.build_beside_a_daemon, w.Cases, model_kwargs={"marker": str(tmp_path / "marker")}))
    running = begun(launcher, FitConfig(w.HANGS, 1, 10, False))
    daemons = [one for one in psutil.Process(launcher._server.pid).children(recursive=True) if one.name() == "sleep"]
    assert len(daemons) == 1
    os.kill(launcher._server.pid, signal.SIGKILL)
    drain(running)
    wait_for(lambda: not any(alive(one) for one in daemons))


def test_a_server_that_is_killed_as_it_starts_is_said_to_be(start):
    launcher = start()
    threading.Timer(0.5, lambda: os.kill(launcher._server.pid, signal.SIGTERM)).start()
    with pytest.raises(TrialProcessError, match="SIGTERM"):
        launcher.warm()


def test_files_with_names_of_the_standard_library_do_not_run_in_the_server(tmp_path, monkeypatch):
    for name in ("queue", "types", "random", "inspect", "socket"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not the standard library')")
    monkeypatch.chdir(tmp_path)
    with ProcessLauncher(Workload(w.build_model, w.Cases), None) as launcher:
        launcher.warm()
        described = drain(launcher.run(TrialSpec(Role.DESCRIBE, FitConfig(), Limits(None, 2**33), 600.0)))[1]
    assert described.parameter_count > 0
