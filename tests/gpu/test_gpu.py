"""On a real GPU: the device limit is real, the peak is the allocator's, an OOM is recognised, a tune ends."""

import pytest

import autofit
from autofit.machine import gpus
from autofit.records.machine import Placement
from autofit.records.states import Outcome, Role
from autofit.records.trial import FitConfig, Limits, TrialSpec
from autofit.trial.launcher import ProcessLauncher
from autofit.workload.workload import Workload
from tests import workloads as w
from tests.fakes import drain

pytestmark = pytest.mark.gpu
GIB = 2**30


@pytest.fixture(scope="module")
def launcher():
    with ProcessLauncher(Workload(w.build_model, w.Cases), Placement.on(gpus.nvidia_devices()[0])) as launcher:
        yield launcher


def measure(launcher, batch, limit):
    spec = TrialSpec(Role.MEASURE, FitConfig(batch, 1, 10, False), Limits(limit, 16 * GIB), 120, 1.0)
    return drain(launcher.run(spec))[1]


def test_the_peak_grows_with_the_batch_within_the_limit(launcher):
    small, large = (measure(launcher, batch, GIB) for batch in (64, 512))
    assert small.outcome is large.outcome is Outcome.OK
    assert 0 < small.device_peak_bytes < large.device_peak_bytes <= GIB


def test_the_limit_is_real_and_its_oom_recognised(launcher):
    measurement = measure(launcher, 16384, GIB)
    assert measurement.outcome is Outcome.DEVICE_OOM
    assert measurement.evidence.reason


def test_a_tune_on_the_gpu_ends_with_a_config_that_fits(tmp_path):
    result = autofit.tune(
        w.build_model,
        w.Cases,
        space={"batch_size": {"min": 32, "max": 16384}, "workers": [1, 2]},
        device="gpu",
        device_memory="1GiB",
        max_trials=8,
        storage=str(tmp_path / "trials.db"),
        progress=False,
    )
    assert result.choice.confirmed
    assert result.device_peak_bytes <= GIB
