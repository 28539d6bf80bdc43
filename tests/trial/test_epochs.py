"""What an epoch costs beyond steady training is in the rate, against data whose epochs take a known time to begin."""

import pytest

from autofit.records.states import Outcome, Phase, Role
from autofit.records.trial import FitConfig, Limits, TrialSpec
from autofit.trial.worker import step_clock
from tests import epochs as e
from tests.epochs import LONG, SHORT
from tests.fakes import drain


def confirmed(launcher, config=None, **spec):
    """A confirming run that reads the gap."""
    known = {"compute_samples_per_second": 50 * e.RATE, "input_samples_per_second": e.RATE, "longest_epoch_seconds": 500.0}
    config = config or FitConfig(None, 1, 10, False)
    phases, measured = drain(
        launcher.run(TrialSpec(Role.CONFIRM, config, Limits(None, 2**33), 600, 1.5, **{**known, **spec}))
    )
    assert measured.outcome is Outcome.OK, measured
    return phases, measured


@pytest.mark.parametrize("length", [LONG, SHORT])
def test_what_the_beginning_of_an_epoch_takes_is_in_the_rate(turn, length):
    phases, measured = confirmed(turn(e.build_model, e.SlowStart, data_kwargs={"length": length}))
    assert Phase.EPOCHS in phases
    assert measured.epoch_samples == length * e.BATCH
    assert e.includes_the_start(measured, length)


def test_a_shuffle_buffer_is_filled_in_each_epoch(turn):
    _, measured = confirmed(turn(e.build_model, e.shuffled, data_kwargs={"length": LONG}), FitConfig(None))
    assert e.includes_the_start(measured, LONG)


def test_an_iterator_that_steps_per_epoch_keeps_is_begun_once(turn):
    launcher = turn(
        e.build_model, e.slow_generator, data_kwargs={"start_seconds": 3.0}, fit_kwargs={"steps_per_epoch": SHORT}
    )
    _, measured = confirmed(launcher, FitConfig(None))
    assert measured.epoch_samples == SHORT * e.BATCH
    assert measured.epoch_gap_seconds < 1.5  # 3 s if it began in each epoch; other work adds tenths to an epoch of 0.2 s


def test_the_steps_of_an_epoch_that_were_given_for_another_batch_size_keep_its_samples(turn):
    launcher = turn(e.build_model, e.slow_generator, fit_kwargs={"steps_per_epoch": SHORT})
    assert confirmed(launcher, FitConfig(None), epoch_samples=4000)[1].epoch_samples == 4000


@pytest.mark.parametrize(
    ("data", "options", "spec", "reason"),
    [
        (e.SlowStart, {"data_kwargs": {"length": LONG}}, {"longest_epoch_seconds": 5.0}, "an epoch takes more than 5 s"),
        (e.slow_generator, {}, {}, step_clock.UNKNOWN),
    ],
)
def test_a_gap_that_is_not_read_has_a_reason(turn, data, options, spec, reason):
    config = FitConfig(None) if data is e.slow_generator else None
    phases, measured = confirmed(turn(e.build_model, data, **options), config, **spec)
    assert measured.epoch_gap_unread == reason
    assert measured.epoch_gap_seconds is None
    assert measured.samples_per_second == measured.steady_samples_per_second
    assert Phase.EPOCHS not in phases


@pytest.mark.parametrize("length", [50_000, 50])
def test_epochs_of_arrays_are_timed_in_the_fit_that_validates(turn, length):
    launcher = turn(
        e.build_model, e.arrays, data_kwargs={"length": length}, validation=e.arrays, validation_kwargs={"length": 30}
    )
    known = {"compute_samples_per_second": 2e4, "input_samples_per_second": 1e6}
    phases, measured = confirmed(launcher, FitConfig(e.BATCH), **known)
    short = ["first_epoch", "first_validation", "validation"]
    assert phases[-5:] == ([*short, "epochs", "training"] if length == 50 else ["epochs", *short, "training"])
    assert measured.epoch_samples == length * e.BATCH
    assert measured.validation_seconds > 0.0


def test_a_trial_of_the_search_reads_the_gap_of_short_epochs(turn):
    launcher = turn(e.build_model, e.SlowStart, data_kwargs={"length": SHORT})
    spec = TrialSpec(Role.MEASURE, FitConfig(None, 2, 4, False), Limits(None, 2**33), 600, 1.0, longest_epoch_seconds=10.0)
    phases, measured = drain(launcher.run(spec))
    assert phases.index("epochs") < phases.index("training")
    assert e.includes_the_start(measured, SHORT, workers=2)
