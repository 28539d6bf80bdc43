"""What happens in a trial's process on JAX and torch, and what it is taken for.

The outcomes that all backends share are in `tests/contracts/`, the whole crash matrix in `tests/trial/test_outcomes.py`.
"""

import pytest

from autofit.errors import UsageError
from autofit.records.states import Outcome
from autofit.records.trial import FitConfig
from tests import workloads as w
from tests.backends import loaders


def test_a_hang_in_a_worker_process_is_noticed_before_its_deadline(launched, play):
    launcher = launched()
    assert play(launcher, FitConfig(w.OK, 1, 10, False)).outcome is Outcome.OK
    measurement = play(launcher, FitConfig(w.HANGS, 2, 2, True))
    assert measurement.outcome is Outcome.TIMEOUT
    assert measurement.evidence.hung


@pytest.mark.parametrize("case", [w.KILLED, w.EXITS])
def test_a_dead_worker_of_a_loader_is_told_apart_from_the_training(launched, play, case):
    config = FitConfig(8, workers=2, use_multiprocessing=True, prefetch_factor=2)
    measurement = play(launched(data=loaders.loader, data_kwargs={"case": case}), config)
    assert measurement.outcome is Outcome.CRASHED, measurement.evidence
    assert "a worker process " in measurement.evidence.reason  # … is killed, or died before it had handed over a batch


def test_a_loader_that_did_not_take_over_its_knobs_is_refused(launched, play):
    with pytest.raises(UsageError, match=r"num_workers=2\b.*num_workers=0"):
        play(launched(data=loaders.forgets_its_workers), FitConfig(8, 2, None, True, 2))
