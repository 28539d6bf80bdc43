import pytest

from autofit.records.states import Role
from autofit.records.trial import FitConfig, Limits, TrialSpec
from autofit.trial.launcher import ProcessLauncher
from autofit.workload.workload import Workload
from tests import workloads
from tests.fakes import drain

GIB = 2**30


@pytest.fixture(scope="session")
def start():
    """Start a launcher for a workload; all are ended at the end."""
    launchers = []

    def start(build_model=workloads.build_model, data=workloads.Cases, launch="auto", **kwargs):
        launchers.append(ProcessLauncher(Workload(build_model, data, **kwargs), None, launch))
        return launchers[-1]

    yield start
    for launcher in launchers:
        launcher.close()


@pytest.fixture(scope="session")
def warm(start):
    """One warm server for all tests that can share it."""
    launcher = start()
    launcher.warm()
    return launcher


@pytest.fixture(scope="session")
def shared(start):
    """A warm server for tests that bring their own workload."""
    return start()


@pytest.fixture
def turn(shared):
    """Give the shared server another workload, for this test."""

    def turn(build_model=workloads.build_model, data=workloads.Cases, **kwargs):
        shared.change(Workload(build_model, data, **kwargs))
        return shared

    return turn


@pytest.fixture(scope="session")
def play():
    """Run one trial to its end; returns its measurement or description."""

    def play(launcher, config=None, *, role="measure", device_bytes=None, host_bytes=8 * GIB, seconds=600, **spec):
        config = config or FitConfig(8, 1, 10, False)
        limits = Limits(device_bytes, host_bytes)
        spec = {"measure_seconds": 0.5, **spec}
        return drain(launcher.run(TrialSpec(Role(role), config, limits, seconds, **spec)))[1]

    return play
