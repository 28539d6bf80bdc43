"""What a trial measures, against inputs whose cost is known."""

import functools
from dataclasses import replace

import numpy as np
import pytest

from autofit.records.states import Outcome, Phase, Role
from autofit.records.trial import FitConfig, Limits, TrialSpec
from tests import workloads as w
from tests.fakes import drain, most_steps

SLOW = 0.15  # seconds a batch
FILTERS = 1


@pytest.fixture(scope="module")
def slow(start):
    return start(data_kwargs={"seconds": SLOW, "length": 40}, model_kwargs={"filters": FILTERS})


@pytest.fixture(scope="module")
def in_memory(start):
    x = np.zeros((400, w.PIXELS, w.PIXELS, 3), "float32")
    return start(data=(x, np.zeros((400, 1), "float32")), validation=(x[:100], np.zeros((100, 1), "float32")))


@pytest.mark.parametrize("knobs", [(1, 10, False), (3, 4, False), (2, 4, True)])
def test_no_more_steps_count_than_a_pipeline_that_sleeps_can_feed(slow, play, knobs):
    workers, queue, _ = knobs
    measurement = play(slow, FitConfig(16, *knobs), measure_seconds=1.5)
    assert measurement.outcome is Outcome.OK
    assert measurement.steps <= most_steps(measurement, workers, SLOW, queue if workers > 1 else 0)
    assert measurement.steady_samples_per_second == pytest.approx(16 / measurement.step_seconds)


def test_a_trial_that_is_surely_too_slow_ends_early_and_takes_over_what_is_known(slow):
    spec = TrialSpec(Role.MEASURE, FitConfig(16, 1, 10, False), Limits(None, 2**33), 600, 100.0)
    told = {"rate_to_beat": 100 * 16 / SLOW, "compute_samples_per_second": 12345.0, "compute_spread": 0.3}
    phases, measurement = drain(slow.run(replace(spec, **told)))
    assert measurement.steps < 20  # three blocks of at least a step show a rate of a hundredth
    assert (measurement.compute_samples_per_second, measurement.compute_spread) == (12345.0, 0.3)
    assert not measurement.compute_is_read
    assert "compute_alone" not in phases


def test_a_slow_queue_is_not_filled_again_for_a_memory_that_is_read(slow):
    spec = TrialSpec(Role.CONFIRM, FitConfig(16, 3, 4, False), Limits(None, 2**33), 600, 1.5)
    phases, again_phases = (drain(slow.run(replace(spec, validates=validates)))[0] for validates in (True, False))
    assert Phase.FILLING_QUEUE in phases
    assert Phase.FILLING_QUEUE not in again_phases


@pytest.mark.slow
def test_the_batches_of_a_full_queue_are_held_in_host_memory(start, play):
    launcher = start(launch="fork")
    batch = 1000 * 4 * w.PIXELS * w.PIXELS * 3
    short, long = (play(launcher, FitConfig(1000, 2, queue, False)).host_peak_bytes for queue in (2, 32))
    assert long - short > 0.4 * 30 * batch  # a queue counts as full after a pause, which other work may cause, too


def test_a_batch_may_be_larger_than_the_arrays(in_memory, play):
    assert play(in_memory, FitConfig(512)).outcome is Outcome.OK


@pytest.mark.parametrize("case", ["arrays", "PyDataset"])
def test_a_confirming_run_is_longer_and_validates(in_memory, turn, play, case):
    launcher = in_memory if case == "arrays" else turn(validation=w.Cases, validation_kwargs={"seconds": 0.01})
    config = FitConfig(32) if case == "arrays" else FitConfig(32, 2, 4, True)
    measurement = play(launcher, config, role="confirm", measure_seconds=1.5)
    assert measurement.outcome is Outcome.OK
    assert measurement.steps * measurement.step_seconds > 1.4  # steps are rounded, as the last of an epoch is a short one


def test_a_confirming_run_goes_through_an_epoch_validation_and_the_next_epoch(in_memory):
    spec = TrialSpec(Role.CONFIRM, FitConfig(32), Limits(None, 2**33), 600, 0.5)
    phases, _ = drain(in_memory.run(spec))
    assert phases[-4:] == ["first_epoch", "first_validation", "validation", "training"]


def test_validation_may_have_batches_of_its_own_size(turn, play):
    launcher = turn(validation=w.Cases, fit_kwargs={"validation_batch_size": w.RAISES})
    broken = play(launcher, FitConfig(32, 1, 10, False), role="confirm")
    assert (broken.outcome, broken.evidence.phase) == (Outcome.ERROR, "validation")


def test_a_confirming_run_sees_a_bug_in_the_validation(turn, play):
    launcher = turn(validation=w.opens_nothing)
    measurement = play(launcher, role="confirm")
    assert measurement.outcome is Outcome.ERROR
    assert "there is no folder of pictures" in measurement.traceback


@pytest.mark.parametrize("steps_per_execution", [1, 5])
def test_a_knob_that_the_user_fixed_is_left_alone_and_its_queue_filled(turn, play, steps_per_execution):
    data = functools.partial(w.Cases, workers=2, max_queue_size=4, seconds=0.05, length=60)
    launcher = turn(data=data, model_kwargs={"steps_per_execution": steps_per_execution})
    described = play(launcher, role="describe")
    assert tuple(described.knobs) == ("batch_size", "use_multiprocessing")
    spec = TrialSpec(Role.MEASURE, FitConfig(16, None, None, False), Limits(None, 2**33), 600, 0.5)
    assert Phase.FILLING_QUEUE in drain(launcher.run(spec))[0]
