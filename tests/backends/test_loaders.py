"""torch DataLoaders that are not quite plain: of one size, a stream, workers that are not forked; what they have ahead."""

import pytest

from autofit.records.states import Outcome
from autofit.records.trial import FitConfig
from tests import workloads as w
from tests.backends import loaders


def test_a_loader_whose_batches_do_not_follow_the_knob_is_tuned_without_it(launched, play):
    described = play(launched(data=loaders.of_one_size), FitConfig(16), role="describe")
    assert described.fixed_batch_size == 8
    assert "batches of 8 " in described.untuned["batch_size"]


def test_a_loader_has_ahead_what_its_workers_may_prefetch(launched, play):
    launcher = launched(data=loaders.loader)
    for workers, factor in ((2, 2), (2, 4), (1, 2)):
        measurement = play(launcher, FitConfig(8, workers, None, True, factor))
        # the two batches of the last steps may be missing, if a busy machine keeps the workers from making others
        assert workers * factor - 2 <= measurement.queued_batches <= workers * factor


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.parametrize(("backend", "start_method"), [("jax", "spawn"), ("torch", "forkserver")], indirect=["backend"])
def test_workers_that_are_not_forked_are_tried_and_their_errors_are_shown(launched, play, start_method):
    config = FitConfig(8, 2, None, True, 2)
    measurement = play(launched(data=loaders.loader, data_kwargs={"start_method": start_method}), config)
    assert measurement.outcome is Outcome.OK, measurement.evidence
    assert measurement.queued_batches == 4
    failed = play(launched(data=loaders.loader, data_kwargs={"start_method": start_method, "case": w.RAISES}), config)
    assert failed.outcome is Outcome.ERROR
    assert "the fifth picture is broken" in failed.traceback


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_is_tried(launched, play, workers):
    config = FitConfig(8, workers, None, True, 2)
    measurement = play(launched(data=loaders.stream), config)
    assert measurement.outcome is Outcome.OK, measurement.evidence
    assert measurement.samples_per_second > 0
