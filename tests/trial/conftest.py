import pytest

from autofit.records.knobs import FitConfig
from autofit.records.states import Role
from autofit.records.trial import Limits, TrialSpec
from autofit.trial.launcher import ProcessLauncher
from autofit.workload.workload import Workload
from tests import workloads
from tests.fakes import played


@pytest.fixture(scope="session")
def shared():
    """A warm server for tests that bring their own workload."""
    with ProcessLauncher(Workload(workloads.build_model, workloads.Cases)) as launcher:
        yield launcher


@pytest.fixture
def turn(shared):
    """Give the shared server another workload, for this test."""

    def turn(build_model=workloads.build_model, data=workloads.Cases, **kwargs):
        shared.change(Workload(build_model, data, **kwargs))
        return shared

    return turn


def run(
    launcher,
    config=None,
    *,
    role="measure",
    device_bytes=None,
    host_bytes=8 * 2**30,
    seconds=600,
    **spec,
):
    """Run one trial to its end; returns its phases, and its measurement or description."""
    config = config or FitConfig(8, 1, 10, False)
    limits = Limits(device_bytes, host_bytes)
    spec = {"measure_seconds": 0.5, **spec}
    return played(launcher, TrialSpec(Role(role), config, limits, seconds, **spec))


@pytest.fixture(scope="session")
def trial():
    """Run one trial to its end; returns its phases, and its measurement or description."""
    return run


@pytest.fixture(scope="session")
def play():
    """Run one trial to its end; returns its measurement or description."""
    return lambda *arguments, **spec: run(*arguments, **spec)[1]
