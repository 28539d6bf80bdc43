"""What happens in a trial's process on JAX and torch, and what it is taken for.

The whole crash matrix is in `tests/trial/test_outcomes.py`: what a backend does not touch is the same on all of them.
"""

import keras
import pytest

from autofit.errors import UsageError
from autofit.records.states import Outcome
from autofit.records.trial import FitConfig
from tests import workloads as w
from tests.backends import loaders

INLINE, PROCESSES = (1, 10, False), (2, 2, True)


@pytest.mark.parametrize(
    ("case", "outcome", "evidence"),
    [(w.OK, Outcome.OK, ""), (w.RAISES, Outcome.ERROR, "ValueError: the fifth picture is broken")],
)
def test_the_outcome_is_what_happened(launched, play, case, outcome, evidence):
    measurement = play(launched(), FitConfig(case, *PROCESSES))
    assert measurement.outcome is outcome, measurement.evidence
    assert evidence in measurement.evidence.reason
    assert (measurement.samples_per_second is not None) == (outcome is Outcome.OK)
    assert "autofit/" not in (measurement.traceback or "")


def test_a_hang_is_noticed_before_its_deadline(launched, play):
    launcher = launched()
    assert play(launcher, FitConfig(w.OK, *INLINE)).outcome is Outcome.OK
    measurement = play(launcher, FitConfig(w.HANGS, *PROCESSES))
    assert measurement.outcome is Outcome.TIMEOUT
    assert measurement.evidence.hung


def too_large():
    """A model with more weights than any machine has room for."""
    layers = keras.layers
    pictures = layers.Input((w.PIXELS, w.PIXELS, 3))
    model = keras.Sequential([pictures, layers.GlobalAveragePooling2D(), layers.Dense(2**44)])
    model.compile("sgd", "mse")
    return model


def test_what_the_backend_cannot_allocate_on_a_cpu_is_the_hosts(launched, play):
    measurement = play(launched(too_large), FitConfig(8, *INLINE))
    assert measurement.outcome is Outcome.HOST_OOM, measurement.evidence


@pytest.mark.parametrize("case", [w.KILLED, w.EXITS])
def test_a_dead_worker_of_a_loader_is_told_apart_from_the_training(launched, play, case):
    config = FitConfig(8, workers=2, use_multiprocessing=True, prefetch_factor=2)
    measurement = play(launched(data=loaders.loader, data_kwargs={"case": case}), config)
    assert measurement.outcome is Outcome.CRASHED, measurement.evidence
    assert "a worker process " in measurement.evidence.reason  # … is killed, or died before it had handed over a batch


def test_a_loader_that_did_not_take_over_its_knobs_is_refused(launched, play):
    with pytest.raises(UsageError, match=r"num_workers=2\b.*num_workers=0"):
        play(launched(data=loaders.forgets_its_workers), FitConfig(8, 2, None, True, 2))
