"""No process and no file outlives its driver, however the driver or its server ends."""

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from autofit.errors import TrialProcessError
from autofit.records.knobs import FitConfig
from autofit.records.states import Outcome, Phase, Role
from autofit.records.trial import Limits, TrialSpec
from autofit.trial import launcher as launcher_module
from autofit.trial import server as server_module
from autofit.trial.launcher import ProcessLauncher
from autofit.workload.workload import Workload
from tests import workloads as w
from tests.commands import PACKAGE

ROOT = Path(__file__).resolve().parents[2]
DRIVER = """
import sys
from autofit.records.trial import Role, FitConfig, Limits, TrialSpec
from autofit.trial.launcher import ProcessLauncher
from autofit.workload.workload import Workload
from tests import workloads

workload = Workload(
    workloads.build_model, workloads.Cases, data_kwargs={"seconds": 0.2, "length": 1000}
)
launcher = ProcessLauncher(workload, launch=sys.argv[1])
spec = TrialSpec(Role.MEASURE, FitConfig(8, 3, 4, True), Limits(None, 2**33), 600, 60.0)
launcher.run(spec, lambda phase: print(phase, flush=True))
"""


@pytest.fixture
def usual():
    """A launcher with a server of its own."""
    with ProcessLauncher(Workload(w.build_model, w.Cases)) as launcher:
        yield launcher


def interrupted(launcher, config, act, seconds=600.0):
    """The result of a trial in whose input pipeline `act` is called.

    With the batch size HANGS it hangs there.
    """
    phases = []

    def on_phase(phase):
        phases.append(phase)
        if phase is Phase.INPUT_ALONE:
            act()

    spec = TrialSpec(Role.MEASURE, config, Limits(None, 2**33), seconds, 0.5)
    measurement = launcher.run(spec, on_phase)
    assert Phase.INPUT_ALONE in phases
    return measurement


def children(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return []


def is_server(process):
    with contextlib.suppress(
        psutil.Error
    ):  # a short-lived child of the driver that has just ended
        return "autofit.trial.server" in str(process.cmdline())
    return False


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
    return result


def are_gone(processes):
    with contextlib.suppress(psutil.NoSuchProcess):
        return all(
            not one.is_running() or one.status() == psutil.STATUS_ZOMBIE
            for one in processes
        )
    return False  # one has ended just now: look again


@pytest.mark.parametrize(
    ("launch", "at"),
    [
        ("fork", "trial"),
        ("plain", "trial"),
        ("fork", "import"),
        ("fork", "orphan"),
        ("fork", "without a guard"),
    ],
)
def test_when_the_driver_is_killed_everything_is_gone(launch, at):
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, launch],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        server = wait_for(
            lambda: next(
                filter(is_server, psutil.Process(process.pid).children()), None
            )
        )
        folder = Path(
            next(
                argument for argument in server.cmdline() if "autofit-tune-" in argument
            )
        )
        below = [server]
        if at != "import":
            assert any(line.strip() == "input_alone" for line in process.stdout)
            below += wait_for(
                lambda: found if len(found := children(server)) >= 4 else None
            )
        if at == "without a guard":  # the server itself removes the folder
            next(
                one
                for one in psutil.Process(process.pid).children()
                if one.name() == "sh"
            ).kill()
        if at == "orphan":
            process.send_signal(signal.SIGSTOP)  # so that it does not notice
            server.kill()
        process.kill()
        process.wait()
        wait_for(lambda: are_gone(below))
        wait_for(lambda: at == "orphan" or not folder.exists())
        shutil.rmtree(folder, ignore_errors=True)  # the next launcher would


def test_a_lost_trial_server_is_noticed_and_replaced_and_what_it_started_is_ended(
    usual, play, tmp_path
):
    usual.change(
        Workload(
            w.build_beside_a_daemon,
            w.Cases,
            model_kwargs={"marker": str(tmp_path / "marker")},
        )
    )
    below = []

    def kill_the_server():
        below.extend(children(psutil.Process(usual._server.pid)))
        assert "sleep" in [one.name() for one in below]  # in a session of its own
        os.kill(usual._server.pid, signal.SIGKILL)

    measurement = interrupted(usual, FitConfig(w.HANGS, 1, 10, False), kill_the_server)
    assert (measurement.outcome, measurement.evidence.server_lost) == (
        Outcome.CRASHED,
        True,
    )
    wait_for(lambda: are_gone(below))
    usual.change(Workload(w.build_model, w.Cases))
    usual.warm()
    os.kill(usual._server.pid, signal.SIGKILL)  # between two trials
    assert play(usual).outcome is Outcome.OK
    below.clear()

    def press_ctrl_c():
        below.extend(children(psutil.Process(usual._server.pid)))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted(usual, FitConfig(w.HANGS, 2, 4, True), press_ctrl_c)
    assert below
    assert are_gone(below)  # a run that is broken off ends its trial


def test_a_server_that_stops_is_noticed_at_its_start_and_at_the_deadline(
    usual, monkeypatch
):
    monkeypatch.setattr(launcher_module, "_SERVER_SECONDS", 1.0)
    with monkeypatch.context() as patch:
        patch.setattr(server_module, "_START_SECONDS", 2.0)
        os.kill(usual._server.pid, signal.SIGSTOP)
        with pytest.raises(TrialProcessError, match="did not answer"):
            usual.warm()
    servers = []

    def suspend_the_server():
        servers.append(psutil.Process(usual._server.pid))
        servers[0].suspend()

    config = FitConfig(w.HANGS, 1, 10, False)
    measurement = interrupted(usual, config, suspend_the_server, seconds=60.0)
    assert measurement.outcome is Outcome.TIMEOUT
    assert are_gone(servers)


def test_a_server_that_is_killed_as_it_starts_and_a_folder_that_is_removed_are_named(
    usual, play
):
    usual._server._process.terminate()
    with pytest.raises(TrialProcessError, match="SIGTERM"):
        usual.warm()
    usual.warm()
    shutil.rmtree(usual._folder.path)
    with pytest.raises(TrialProcessError, match="TMPDIR"):
        play(usual)


def test_what_a_trial_writes_to_temporary_files_goes_with_its_tune(
    tmp_path, monkeypatch, play
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in (
        "queue",
        "types",
        "random",
        "inspect",
        "socket",
    ):  # files that must not run in the server
        (tmp_path / f"{name}.py").write_text(
            "raise SystemExit('not the standard library')"
        )
    monkeypatch.chdir(tmp_path)
    before = {*tmp_path.iterdir()}
    with ProcessLauncher(
        Workload(functools.partial(w.build_model, xla=True), w.Cases)
    ) as launcher:
        assert play(launcher, role="describe").parameter_count > 0
        assert list(launcher._folder.temporary.iterdir())  # TensorFlow's and XLA's
        assert {*tmp_path.iterdir()} == {*before, launcher._folder.path}
    assert {*tmp_path.iterdir()} == before


def test_a_backend_that_cannot_be_imported_is_shown_without_frames_of_ours(
    monkeypatch, tmp_path
):
    (tmp_path / "keras.py").write_text(
        "raise ImportError('libsomething.so: cannot open')"
    )
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    )
    with (
        ProcessLauncher(Workload(w.build_model, w.Cases)) as launcher,
        pytest.raises(TrialProcessError) as caught,
    ):
        launcher.warm()
    assert "ImportError: libsomething.so: cannot open" in str(caught.value)
    assert PACKAGE not in str(caught.value)
