"""No process and no file outlives its driver, however the driver or its server ends."""

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

INLINE = FitConfig(8, 1, 10, False)
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


def usual():
    return ProcessLauncher(Workload(w.build_model, w.Cases), None)


@contextlib.contextmanager
def driver_of(launch):
    """A driver with a server and a trial; all are ended at the end."""
    program = DRIVER.format(root=str(Path(__file__).resolve().parents[2]), launch=launch)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        server = wait_for(lambda: next(filter(is_server, psutil.Process(process.pid).children()), None))
        try:
            yield process, server, Path(next(argument for argument in server.cmdline() if "autofit-tune-" in argument))
        finally:
            left = [server, *children(server)]
            process.kill()
            for one in left:
                with contextlib.suppress(psutil.Error):
                    one.kill()


@pytest.fixture(scope="module")
def living():
    """A launcher whose server starts anew where a test has ended it."""
    with usual() as launcher:
        yield launcher


@pytest.fixture
def launcher(living):
    """The same with the usual workload and a server that is ready."""
    living.change(Workload(w.build_model, w.Cases))
    living.warm()
    return living


def begun(launcher, config=INLINE, until=Phase.INPUT_ALONE, seconds=600.0):
    """A trial that has come to a phase; with the batch size HANGS it hangs in its data, alone in the input pipeline."""
    running = launcher.run(TrialSpec(Role.MEASURE, config, Limits(None, 2**33), seconds, 0.5))
    assert until in running
    return running


def is_server(process):
    with contextlib.suppress(psutil.Error):  # a short-lived child of the driver that has just ended
        return "autofit.trial.server" in str(process.cmdline())
    return False


def children(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return []


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        result = condition()
        if result:
            return result
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


def are_gone(processes):
    with contextlib.suppress(psutil.NoSuchProcess):
        return all(not one.is_running() or one.status() == psutil.STATUS_ZOMBIE for one in processes)
    return False  # one has ended just now: look again


@pytest.mark.parametrize(
    ("launch", "before"),
    [("fork", None), ("plain", None), ("fork", signal.SIGKILL), ("fork", signal.SIGSTOP)],
)
def test_when_the_driver_is_killed_everything_is_gone_even_if_its_server_was_killed_or_stopped(launch, before):
    with driver_of(launch) as (process, server, folder):
        assert any(line.strip() == "input_alone" for line in process.stdout)
        below = [server, *wait_for(lambda: processes if len(processes := children(server)) >= 4 else None)]
        assert folder.is_dir()
        if before is not None:
            process.send_signal(signal.SIGSTOP)  # so that it does not notice
            server.send_signal(before)
        process.kill()
        process.wait()
        wait_for(lambda: are_gone(below) and not folder.exists())


@pytest.mark.parametrize("seconds", [0.1, 1.1])
def test_when_the_driver_is_killed_while_the_server_imports_everything_is_gone_too(seconds):
    with driver_of("fork") as (process, server, folder):
        time.sleep(seconds)
        below = children(psutil.Process(process.pid))
        process.kill()
        process.wait()
        wait_for(lambda: are_gone([server, *below]) and not folder.exists())


def test_a_lost_trial_server_is_noticed_and_replaced_and_what_it_started_is_ended(launcher, play, tmp_path):
    launcher.change(Workload(w.build_beside_a_daemon, w.Cases, model_kwargs={"marker": str(tmp_path / "marker")}))
    running = begun(launcher, FitConfig(w.HANGS, 1, 10, False))
    below = children(psutil.Process(launcher._server.pid))
    assert "sleep" in [one.name() for one in below]  # in a session of its own
    os.kill(launcher._server.pid, signal.SIGKILL)
    _, measurement = drain(running)
    assert (measurement.outcome, measurement.evidence.server_lost) == (Outcome.CRASHED, True)
    wait_for(lambda: are_gone(below))
    launcher.change(Workload(w.build_model, w.Cases))
    assert play(launcher).outcome is Outcome.OK
    os.kill(launcher._server.pid, signal.SIGKILL)  # between two trials
    assert play(launcher).outcome is Outcome.OK


def test_a_run_that_is_broken_off_ends_its_trial(launcher):
    running = begun(launcher, FitConfig(w.HANGS, 2, 4, True))
    below = children(psutil.Process(launcher._server.pid))
    assert below
    running.close()
    assert are_gone(below)


def test_a_server_that_stops_is_noticed_at_its_start_and_at_the_deadline(monkeypatch):
    monkeypatch.setattr(launcher_module, "_SERVER_SECONDS", 1.0)
    with usual() as launcher:
        with monkeypatch.context() as patch:
            patch.setattr(server_module, "_START_SECONDS", 2.0)
            os.kill(launcher._server.pid, signal.SIGSTOP)
            with pytest.raises(TrialProcessError, match="did not answer"):
                launcher.warm()
        # a trial that hangs, and one that ends and has sent all its readings
        for batch_size, outcome in ((w.HANGS, Outcome.TIMEOUT), (8, Outcome.OK)):
            running = begun(launcher, FitConfig(batch_size, 1, 10, False), seconds=30.0)
            server = psutil.Process(launcher._server.pid)
            server.suspend()
            assert drain(running)[1].outcome is outcome
            assert are_gone([server])


def test_a_server_that_is_killed_as_it_starts_is_said_to_be(start):
    launcher = start()
    threading.Timer(0.5, lambda: os.kill(launcher._server.pid, signal.SIGTERM)).start()
    with pytest.raises(TrialProcessError, match="SIGTERM"):
        launcher.warm()


def test_a_folder_that_is_removed_in_mid_tune_is_said_to_be(start, play):
    launcher = start()
    launcher.warm()
    shutil.rmtree(launcher._folder.path)
    with pytest.raises(TrialProcessError, match="TMPDIR"):
        play(launcher)


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
    with usual() as launcher, pytest.raises(TrialProcessError, match="/nowhere/python"):
        launcher.warm()
    assert list(tmp_path.iterdir()) == []


def test_a_backend_that_cannot_be_imported_is_shown_without_frames_of_ours(monkeypatch, tmp_path):
    (tmp_path / "keras").mkdir()
    (tmp_path / "keras" / "__init__.py").write_text("raise ImportError('libsomething.so: cannot open')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with usual() as launcher, pytest.raises(TrialProcessError) as error:
        launcher.warm()
    assert "ImportError: libsomething.so: cannot open" in str(error.value)
    assert "autofit/" not in str(error.value)


def test_files_with_names_of_the_standard_library_do_not_run_in_the_server(tmp_path, monkeypatch):
    for name in ("queue", "types", "random", "inspect", "socket"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not the standard library')")
    monkeypatch.chdir(tmp_path)
    with usual() as launcher:
        described = drain(launcher.run(TrialSpec(Role.DESCRIBE, FitConfig(), Limits(None, 2**33), 600.0)))[1]
    assert described.parameter_count > 0
