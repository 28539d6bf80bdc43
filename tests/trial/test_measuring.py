"""What a trial measures, against inputs whose cost is known."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest

from autofit.records.knobs import FitConfig
from autofit.records.states import Outcome, Phase
from autofit.trial.worker import drive
from autofit.trial.worker.plan import Plan
from tests import workloads as w

SLOW = 0.15  # seconds a batch
ARRAYS = (
    np.zeros((400, w.PIXELS, w.PIXELS, 3), "float32"),
    np.zeros((400, 1), "float32"),
)


@pytest.fixture
def slow(turn):
    return turn(
        data_kwargs={"seconds": SLOW, "length": 40}, model_kwargs={"filters": 1}
    )


def test_a_trial_that_is_surely_too_slow_ends_early_and_takes_over_what_is_known(
    slow, trial
):
    given = {"rate_to_beat": 100 * 16 / SLOW, "compute_samples_per_second": 12345.0}
    phases, measurement = trial(
        slow, FitConfig(16, 1, 10, False), measure_seconds=100.0, **given
    )
    assert (
        measurement.steps < 20
    )  # three blocks of at least a step show a rate of a hundredth
    assert measurement.compute_samples_per_second == 12345.0
    assert not measurement.compute_is_read
    assert "compute_alone" not in phases


@pytest.mark.parametrize("role", ["measure", "confirm"])
@pytest.mark.parametrize("reads_memory", [True, False])
def test_a_slow_queue_is_filled_only_for_a_memory_that_is_not_read(
    slow, trial, role, reads_memory
):
    phases, _ = trial(
        slow, FitConfig(16, 3, 4, False), role=role, reads_memory=reads_memory
    )
    assert (Phase.FILLING_QUEUE in phases) is reads_memory


def test_arrays_may_be_fewer_than_a_batch(turn, trial):
    launcher = turn(data=ARRAYS, validation=tuple(part[:100] for part in ARRAYS))
    assert trial(launcher, FitConfig(512))[1].outcome is Outcome.OK


def test_a_confirming_run_sees_a_bug_in_the_validation_which_may_have_batches_of_its_own_size(
    turn, play
):
    launcher = turn(validation=w.Cases, fit_kwargs={"validation_batch_size": w.RAISES})
    broken = play(launcher, FitConfig(32, 1, 10, False), role="confirm")
    assert (broken.outcome, broken.evidence.phase) == (Outcome.ERROR, "validation")


@pytest.mark.parametrize("steps_per_execution", [1, 5])
def test_a_knob_that_the_user_fixed_is_left_alone_and_its_queue_filled(
    turn, trial, steps_per_execution
):
    data = functools.partial(
        w.Cases, workers=2, max_queue_size=4, seconds=0.05, length=60
    )
    launcher = turn(
        data=data, model_kwargs={"steps_per_execution": steps_per_execution}
    )
    assert tuple(trial(launcher, role="describe")[1].knobs) == (
        "batch_size",
        "use_multiprocessing",
    )
    phases, measured = trial(launcher, FitConfig(16, None, None, False))
    assert Phase.FILLING_QUEUE in phases
    assert measured.queued_batches > 0


@pytest.mark.parametrize(("known", "timed"), [(10, 2), (None, 8)])
def test_a_last_call_of_a_validation_counts_the_batches_that_it_has(
    monkeypatch, known, timed
):
    monkeypatch.setattr(drive.time, "perf_counter", iter([5.0, 6.0]).__next__)
    context = SimpleNamespace(enter=lambda phase: None)
    model = SimpleNamespace(steps_per_execution=8)
    plan = Plan({"validation_steps": known}, {})
    driver = drive.Driver(context, drive.CALLS["fit"], model, plan)
    driver.on_test_begin()
    for first in (0, 8):
        driver.on_test_batch_begin(first)
    driver.on_test_end()
    assert driver.validation_batch_seconds == pytest.approx(1 / timed)
