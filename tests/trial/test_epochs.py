"""What an epoch costs beyond steady training is in the rate.

The rate is held against data whose epochs take a known time to begin.
"""

import pytest

from autofit.records.knobs import FitConfig
from autofit.records.states import Outcome, Phase
from autofit.trial.worker import step_clock
from tests import epochs as e
from tests.epochs import LONG, SHORT
from tests.workloads import build_rows

INLINE, UNSET = FitConfig(None, 1, 10, False), FitConfig(None)


@pytest.fixture
def confirmed(turn, trial):
    """A confirming run that reads the gap."""

    def confirmed(data, config=UNSET, options=None, **spec):
        known = {
            "compute_samples_per_second": 50 * e.RATE,
            "input_samples_per_second": e.RATE,
        }
        known |= {"longest_epoch_seconds": 500.0, "measure_seconds": 1.5}
        phases, measured = trial(
            turn(build_rows, data, **(options or {})),
            config,
            role="confirm",
            **{**known, **spec},
        )
        assert measured.outcome is Outcome.OK, measured
        return phases, measured

    return confirmed


@pytest.mark.parametrize(
    ("data", "config", "length"),
    [
        (e.SlowStart, INLINE, LONG),
        (e.SlowStart, INLINE, SHORT),
        (e.shuffled, UNSET, LONG),
    ],
)
def test_what_the_beginning_of_an_epoch_takes_is_in_the_rate(
    confirmed, data, config, length
):
    phases, measured = confirmed(data, config, {"data_kwargs": {"length": length}})
    assert Phase.EPOCHS in phases
    assert measured.epoch_samples == length * e.BATCH
    assert e.includes_the_start(measured, length)


def test_an_iterator_that_steps_per_epoch_keeps_is_begun_once(confirmed, tmp_path):
    starts = tmp_path / "starts"
    options = {
        "data_kwargs": {"starts": str(starts)},
        "fit_kwargs": {"steps_per_epoch": SHORT},
    }
    _, measured = confirmed(e.slow_generator, options=options)
    assert measured.epoch_samples == SHORT * e.BATCH
    # looked at, warmed up and timed; at least three epochs are timed
    assert len(starts.read_text().splitlines()) <= 3
    assert (
        confirmed(e.slow_generator, options=options, epoch_samples=4000)[
            1
        ].epoch_samples
        == 4000
    )  # of another size


def test_a_gap_that_is_not_read_has_a_reason(confirmed):
    phases, measured = confirmed(e.slow_generator)
    assert measured.epoch_gap_unread == step_clock.UNKNOWN
    assert measured.epoch_gap_seconds is None
    assert measured.samples_per_second == measured.steady_samples_per_second
    assert Phase.EPOCHS not in phases


@pytest.mark.parametrize("length", [50_000, 50])
def test_epochs_of_arrays_are_timed_in_the_fit_that_validates(confirmed, length):
    options = {
        "data_kwargs": {"length": length},
        "validation": e.arrays,
        "validation_kwargs": {"length": 30},
    }
    known = {"compute_samples_per_second": 2e4, "input_samples_per_second": 1e6}
    phases, measured = confirmed(e.arrays, FitConfig(e.BATCH), options, **known)
    short = ["first_epoch", "first_validation", "validation"]
    assert phases[-5:] == (
        [*short, "epochs", "training"]
        if length == 50
        else ["epochs", *short, "training"]
    )
    assert measured.epoch_samples == length * e.BATCH
    assert measured.validation_seconds > 0.0
