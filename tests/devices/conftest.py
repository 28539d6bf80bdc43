import pytest

from autofit.records.machine import Placement
from autofit.trial.launcher import ProcessLauncher
from autofit.workload.workload import Workload
from tests.devices import jobs
from tests.installed import needs
from tests.trial.conftest import play, shared, start, turn  # noqa: F401  # fixtures


@pytest.fixture(scope="session")
def two_devices():
    """Warm servers on two devices, one for each backend that is asked for."""
    launchers = {}

    def two_devices(backend):
        needs(backend)
        if backend not in launchers:
            launchers[backend] = ProcessLauncher(Workload(jobs.build, jobs.Table, backend=backend), Placement(count=2))
        return launchers[backend]

    yield two_devices
    for launcher in launchers.values():
        launcher.close()


@pytest.fixture
def turn_two(two_devices):
    """Give a server on two devices another workload, for this test."""

    def turn_two(build_model=jobs.build, data=jobs.Table, backend="tensorflow", **kwargs):
        two_devices(backend).change(Workload(build_model, data, backend=backend, **kwargs))
        return two_devices(backend)

    return turn_two
