"""The tests of a file run on its `BACKEND`.

Before a release, they run on each other that AUTOFIT_TEST_BACKEND names.
"""

import os

import pytest

from autofit.trial.launcher import ProcessLauncher
from autofit.workload.workload import Workload
from tests import workloads as w
from tests.installed import needs
from tests.trial.conftest import play  # noqa: F401  # a fixture


@pytest.fixture(scope="module")
def backend(request):
    name = os.environ.get("AUTOFIT_TEST_BACKEND") or request.module.BACKEND
    needs(name)
    return name


@pytest.fixture(scope="module")
def warm(backend):
    """A warm server of the backend."""
    with ProcessLauncher(Workload(w.build_model, w.Cases, backend=backend)) as launcher:
        yield launcher


@pytest.fixture
def launched(backend, warm):
    """Give the warm server another workload, for this test."""

    def launched(build_model=w.build_model, data=w.Cases, **kwargs):
        warm.change(Workload(build_model, data, backend=backend, **kwargs))
        return warm

    return launched
