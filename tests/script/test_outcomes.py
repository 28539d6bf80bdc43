"""What ends the trial of a script, for real: memory of the device or the host, and an endless wait
before `fit`.
"""

import pytest

from autofit.records.description import Description
from autofit.records.states import Outcome, Role
from autofit.records.trial import FitConfig, Limits, TrialSpec
from autofit.trial.launcher import ProcessLauncher
from autofit.workload.script import make_script
from autofit.workload.workload import Workload

pytest.importorskip("tensorflow")

FITS, WAITS, FILLS_HOST, FILLS_DEVICE = 8, 16, 64, 2048
TEXT = f"""\
import time

import numpy as np
import keras

BATCH_SIZE = {FITS}
if BATCH_SIZE == {WAITS}:
    time.sleep(1000)
held = []
while BATCH_SIZE == {FILLS_HOST}:
    held.append(np.ones(2**24))
    time.sleep(0.1)
x = np.zeros((4096, 32, 32, 3), "float32")
y = np.zeros((4096, 1), "float32")
layers = [keras.layers.Conv2D(32, 3), keras.layers.Flatten(), keras.layers.Dense(1)]
model = keras.Sequential([keras.layers.Input((32, 32, 3)), *layers])
model.compile("sgd", "mse")
model.fit(x, y, batch_size=BATCH_SIZE)
"""


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """Run a trial of the script to its end, once its first run has found the places."""
    script = tmp_path_factory.mktemp("script") / "train.py"
    script.write_text(TEXT)

    with ProcessLauncher(
        Workload(None, None, script=make_script(str(script)))
    ) as launcher:

        def run(batch_size, *, seconds=600, role=Role.MEASURE, device=None):
            limits = Limits(device, 3 * 2**29)
            config = FitConfig(batch_size)
            spec = TrialSpec(role, config, limits, seconds, measure_seconds=0.5)
            return launcher.run(spec)

        assert isinstance(run(None, role=Role.DESCRIBE), Description)
        yield run


@pytest.mark.parametrize(
    ("batch_size", "limits", "outcome"),
    [
        (FITS, {}, Outcome.OK),
        (WAITS, {"seconds": 15}, Outcome.TIMEOUT),
        (FILLS_HOST, {}, Outcome.HOST_OOM),
        (FILLS_DEVICE, {"device": 48 * 2**20}, Outcome.DEVICE_OOM),
    ],
)
def test_the_outcome_is_what_happened(trial, batch_size, limits, outcome):
    measurement = trial(batch_size, **limits)
    assert measurement.outcome is outcome, measurement.evidence
