"""The tests of a file run on its `BACKEND`; before a release, on each other that AUTOFIT_TEST_BACKEND names."""

import os

import pytest

from tests.installed import needs
from tests.trial.conftest import play  # noqa: F401  # a fixture


@pytest.fixture(scope="module")
def backend(request):
    name = os.environ.get("AUTOFIT_TEST_BACKEND") or request.module.BACKEND
    needs(name)
    return name


@pytest.fixture(scope="session")
def server():
    """The warm server of one backend at a time."""
    from autofit.trial.launcher import ProcessLauncher
    from autofit.workload.workload import Workload
    from tests import workloads as w

    started = {}

    def server(backend):
        if backend not in started:
            close()
            started[backend] = ProcessLauncher(Workload(w.build_model, w.Cases, backend=backend), None)
            started[backend].warm()
        return started[backend]

    def close():
        while started:
            started.popitem()[1].close()

    yield server
    close()


@pytest.fixture
def launched(backend, server):
    """A warm server of a backend, given another workload for each test."""
    from autofit.workload.workload import Workload
    from tests import workloads as w

    def change(build_model=w.build_model, data=w.Cases, **kwargs):
        launcher = server(backend)
        launcher.change(Workload(build_model, data, backend=backend, **kwargs))
        return launcher

    return change
