import pytest

from autofit.records.states import Role
from autofit.records.trial import Limits, TrialSpec
from autofit.trial.launcher import ProcessLauncher
from autofit.workload.workload import Workload
from tests.contracts import rows
from tests.fakes import played
from tests.installed import needs

LIBRARIES = {rows.loader: "torch", rows.tfdata: "tensorflow"}  # of forms of data
PARTS = {"build_model": rows.build_model, "data": rows.pydataset}


@pytest.fixture(scope="class")
def launcher(request):
    """The warm launcher of a backend's contract."""
    needs(request.cls.backend)
    with ProcessLauncher(Workload(**PARTS, backend=request.cls.backend)) as launcher:
        yield launcher


@pytest.fixture
def run(launcher, request):
    """Run trials on the warm launcher.

    Each returns its phases, and its measurement or description.
    """
    present = []

    def run(
        config,
        role="measure",
        *,
        device_bytes=None,
        host_bytes=8 * 2**30,
        seconds=120,
        spec=None,
        **parts,
    ):
        if (library := LIBRARIES.get(parts.get("data"))) is not None:
            needs(library)
        if present != [
            parts
        ]:  # what the launcher learns from a trial is lost when the workload changes
            present[:] = [parts]
            launcher.change(Workload(**PARTS | parts, backend=request.cls.backend))
        limits = Limits(device_bytes, host_bytes)
        spec = {"measure_seconds": 0.5, **(spec or {})}
        return played(launcher, TrialSpec(Role(role), config, limits, seconds, **spec))

    return run
