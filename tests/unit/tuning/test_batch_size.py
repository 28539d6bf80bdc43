"""What `batch_size` asks for: both answers, only that of the own batch size, or the largest batch that fits."""

from dataclasses import replace

import pytest

from autofit.errors import UsageError
from autofit.tuning.settings import TuneSettings
from tests.fakes import BASELINE, DESCRIPTION, KNOBS, MIB, FakeLauncher, collect, make_request, searched, tune


@pytest.mark.parametrize(("asked", "own"), [("keep", 32), (48, 48)])
def test_a_batch_size_that_is_kept_is_the_only_one_that_runs(tmp_path, asked, own):
    launcher = FakeLauncher()
    events, record = collect(tune, make_request(tmp_path, batch_size=asked), launcher)
    assert {spec.config.batch_size for spec in launcher.specs if spec.role != "describe"} == {own}
    assert record.config == record.same_batch.config != replace(BASELINE, batch_size=own)
    assert record.speedup.baseline == replace(BASELINE, batch_size=own)
    assert record.speedup.is_shown
    assert len(searched(events)) <= 6  # those at the own batch size are no additional ones


def test_a_batch_size_that_is_given_belongs_to_the_baseline_and_others_are_tried_with_tune(tmp_path):
    launcher = FakeLauncher()
    _, record = collect(tune, make_request(tmp_path, baseline={"batch_size": 48}), launcher)
    assert record.same_batch.config.batch_size == 48 < record.config.batch_size


def test_the_largest_batch_that_fits_is_found_without_an_oom_and_not_for_its_speed(tmp_path):
    """The rate saturates at batch sizes far below the limit, and few updates are left: both do not count."""
    request = make_request(tmp_path, batch_size="largest", device_bytes=700 * MIB, min_updates=32, max_trials=12)
    events, record = collect(tune, request, FakeLauncher())
    assert 0.8 * 700 * MIB < record.device_peak_bytes <= 700 * MIB
    assert record.config.batch_size == max(trial.config.batch_size for trial in record.trials)
    assert replace(record.config, batch_size=32) == BASELINE  # the other knobs are the user's
    assert not any(trial.measurement.outcome.is_oom for trial in searched(events))
    assert record.fastest.confirmed
    assert "no larger batch is certain to fit" in record.stop_reason


def test_with_data_of_one_batch_size_there_is_no_largest_one(tmp_path):
    fixed = replace(DESCRIPTION, knobs={knob: knob for knob in KNOBS if knob != "batch_size"})
    with pytest.raises(UsageError, match="the data has one batch size; add a parameter batch_size"):
        collect(tune, make_request(tmp_path, batch_size="largest"), FakeLauncher({"describe": fixed}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": "keep", "space": {"batch_size": [16, 32]}}, "'keep' is given, but space gives values to try"),
        ({"batch_size": 64, "space": {"batch_size": [16, 32]}}, "64 is given, but space gives values to try"),
        ({"batch_size": "largest", "space": {"batch_size": [16]}}, "'largest' is given, but space gives values to try"),
        ({"batch_size": 64, "baseline": {"batch_size": 32}}, "64 is given, but baseline has 32; give one of them"),
    ],
)
def test_two_batch_sizes_that_contradict_each_other_are_an_error(settings, message):
    with pytest.raises(UsageError, match=message) as raised:
        TuneSettings(**settings)
    assert raised.value.key == "batch_size"
