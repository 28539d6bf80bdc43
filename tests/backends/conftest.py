import pytest

from tests.installed import needs
from tests.trial.conftest import play  # noqa: F401  # a fixture


@pytest.fixture(params=["jax", "torch"], scope="session")
def backend(request):
    needs("torch" if request.param == "tensorflow" else request.param)  # whose DataLoader it is tested with
    return request.param


@pytest.fixture(scope="session")
def launched(backend):
    """A warm server of a backend, given another workload for each test."""
    from autofit.trial.launcher import ProcessLauncher
    from autofit.workload.workload import Workload
    from tests import workloads as w

    with ProcessLauncher(Workload(w.build_model, w.Cases, backend=backend), None) as launcher:
        launcher.warm()

        def change(build_model=w.build_model, data=w.Cases, **kwargs):
            launcher.change(Workload(build_model, data, backend=backend, **kwargs))
            return launcher

        yield change
