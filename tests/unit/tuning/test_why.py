"""Where the time of an epoch goes, with trials that follow formulas."""

from dataclasses import replace

import pytest

from autofit.errors import UsageError, UserCodeError
from autofit.records.epoch import epoch_of
from autofit.records.knobs import FitConfig
from autofit.records.result import CallSource, TuneLog
from autofit.records.states import Outcome, Phase
from autofit.records.trial import Conditions, Evidence, Limits, Measurement, Trial
from autofit.tuning import engine, remedies, why
from tests.fakes import DESCRIPTION, MACHINE, FakeLauncher, make_request

OWN = FitConfig(32, 1, 10, False)
STEPS = replace(OWN, steps_per_execution=32)


def read(config=OWN, *, rate=500.0, compute=None, inputs=None, **fields):
    """A trial of 1,000 samples in an epoch, by its rates."""
    measured = Measurement(
        Outcome.OK,
        Evidence("made up"),
        2.0,
        samples_per_second=rate,
        steady_samples_per_second=rate,
        compute_samples_per_second=compute,
        input_samples_per_second=inputs,
        epoch_samples=1000,
        **fields,
    )
    return Trial(config, measured)


@pytest.mark.parametrize(
    ("rates", "fields", "parts"),
    [
        # 2 s of an epoch, in which the step alone takes 0.5 s and the data 1.9 s
        ((500, 2000, 526.3), {}, {"data": 1.5, "step": 0.5}),
        # both alone take 0.5 s and less
        ((500, 2000, 4000), {}, {"contention": 1.5, "step": 0.5}),
        # what is explained but for a tenth is not called contention
        ((500, 1000, 550), {}, {"data": 1.0, "step": 1.0}),
        ((500, None, None), {}, {"step": 2.0}),
        (
            (500, 505, 4000),
            {
                "epoch_gap_seconds": 3.0,
                "validation_seconds": 4.0,
                "phase_seconds": {Phase.FIRST_STEP: 9.0},
            },
            {"step": 1.98, "data": 0.02, "start": 3.0, "validation": 4.0},
        ),
    ],
)
def test_the_parts_of_an_epoch_add_up(rates, fields, parts):
    rate, compute, inputs = rates
    trial = read(rate=rate, compute=compute, inputs=inputs, **fields)
    epoch = epoch_of(DESCRIPTION, OWN, [trial])
    shown = {
        name: seconds
        for name, seconds in epoch.parts.items()
        if seconds and name != "first_step"
    }
    assert shown == pytest.approx(parts, abs=0.01)
    assert epoch.seconds == pytest.approx(sum(parts.values()), abs=0.01)
    assert (epoch.samples, epoch.steps) == (1000, 32)


def test_what_keras_does_between_steps_follows_from_longer_calls():
    # 1 ms of 4 in a step is Keras's: 32 steps a call leave a 32nd of it
    one = read(rate=8000, compute=32 / 0.004)
    many = read(STEPS, rate=10000, compute=32 / (0.003 + 0.001 / 32))
    epoch = epoch_of(DESCRIPTION, OWN, [one, many])
    assert epoch.parts["keras"] == pytest.approx(1000 / 32 * 0.001)
    assert epoch_of(DESCRIPTION, OWN, [one]).parts["keras"] == 0


def test_the_cause_is_what_takes_most_of_a_whole_training():
    trial = read(compute=600, inputs=9000, phase_seconds={Phase.FIRST_STEP: 20.0})
    epoch = epoch_of(DESCRIPTION, OWN, [trial])
    assert [epoch.cause_over(epochs) for epochs in (1, 100)] == ["first_step", "step"]
    busy = replace(trial.measurement, conditions=Conditions(2, 1.5, 0.0))
    disturbed = epoch_of(DESCRIPTION, OWN, [replace(trial, measurement=busy)])
    assert disturbed.cause_over(100) == "other_work"


def test_an_epoch_of_unknown_length_is_assumed():
    description = replace(DESCRIPTION, sample_count=None)
    trial = read()
    unknown = replace(trial.measurement, epoch_samples=None)
    epoch = epoch_of(description, OWN, [replace(trial, measurement=unknown)])
    assert (epoch.is_length_known, epoch.steps) == (False, 1000)


def asked(tmp_path, launcher, **changes):
    request = make_request(tmp_path, baseline=OWN.values(), **changes)
    return why.why(request, launcher, lambda event: None)


def with_slow_input(spec, measured):
    """The data takes most of the time with one worker."""
    if not measured.samples_per_second:
        return measured
    rate = min(3000.0, 100.0 * spec.config.workers)
    return replace(
        measured,
        samples_per_second=rate,
        steady_samples_per_second=rate,
        compute_samples_per_second=3000.0,
        input_samples_per_second=rate,
        epoch_gap_seconds=0.1,
        epoch_samples=2000,
    )


def test_at_most_two_changes_are_tried_and_the_tune_goes_on_with_them(tmp_path):
    launcher = FakeLauncher(changed=with_slow_input)
    record = asked(tmp_path, launcher)
    assert (record.cause, record.config) == ("data", OWN)
    tried = launcher.configs("measure")
    assert tried[0] == OWN
    assert 2 <= len(tried) <= 3
    assert all(spec.validates for spec in launcher.specs[1:])
    best = record.remedies[0]
    assert best.config in tried
    assert best.low < best.seconds < best.high < record.seconds
    # a second question, and the tune, find them stored
    again = FakeLauncher(changed=with_slow_input)
    assert asked(tmp_path, again).seconds == record.seconds
    assert again.configs("measure") == []
    engine.tune(
        make_request(tmp_path, baseline=OWN.values()), again, lambda event: None
    )
    assert not set(again.configs("measure")) & set(tried)


def test_beside_other_work_nothing_is_tried_and_the_next_question_measures_again(
    tmp_path,
):
    busy = Conditions(2, 1.5, 0.0)

    def disturbed(spec, measured):
        return replace(with_slow_input(spec, measured), conditions=busy)

    launcher = FakeLauncher(changed=disturbed)
    record = asked(tmp_path, launcher)
    assert record.cause == "other_work"
    assert set(launcher.configs("measure")) == {OWN}
    assert any("End that work" in note for note in record.notes)
    again = FakeLauncher(changed=with_slow_input)
    assert asked(tmp_path, again).cause == "data"
    assert again.configs("measure")[0] == OWN


def test_a_saved_tune_is_explained_by_its_trials(tmp_path):
    request = make_request(tmp_path, baseline=OWN.values())
    launcher = FakeLauncher(changed=with_slow_input)
    record = engine.tune(request, launcher, lambda event: None)
    count = len(launcher.specs)
    explained = remedies.explain_saved(record)
    assert len(launcher.specs) == count
    assert explained.cause == "data"
    assert sum(
        seconds for part, seconds in explained.parts.items() if part != "first_step"
    ) == pytest.approx(explained.seconds)


def test_the_step_is_timed_with_the_compiler_where_it_takes_most(tmp_path):
    slow = FakeLauncher(
        changed=lambda spec, measured: (
            replace(
                measured,
                samples_per_second=100.0 * (2 if spec.jit_compile else 1),
                steady_samples_per_second=100.0 * (2 if spec.jit_compile else 1),
                compute_samples_per_second=100.0,
                input_samples_per_second=9000.0,
                epoch_gap_seconds=0.0,
                epoch_samples=2000,
            )
            if measured.samples_per_second
            else measured
        )
    )
    record = asked(tmp_path, slow)
    assert record.cause == "step"
    assert [spec.jit_compile for spec in slow.specs[1:]] == [None, True]
    (remedy,) = (each for each in record.remedies if each.part == "step")
    assert remedy.seconds == pytest.approx(record.seconds / 2)
    assert remedy.low < remedy.seconds < remedy.high


def test_runs_of_two_epochs_do_not_make_intervals_meaningless(tmp_path):
    def read_twice(spec, measured):
        return replace(with_slow_input(spec, measured), spread=5.0)

    best, *_ = asked(tmp_path, FakeLauncher(changed=read_twice), max_trials=2).remedies
    assert best.low > best.seconds / 2


def test_what_other_work_disturbed_has_no_seconds(tmp_path):
    def disturbed(spec, measured):
        changed = with_slow_input(spec, measured)
        if spec.config == OWN:
            return changed
        return replace(changed, conditions=Conditions(2, 1.5, 0.0))

    record = asked(tmp_path, FakeLauncher(changed=disturbed))
    assert record.cause == "data"
    tried = [remedy for remedy in record.remedies if remedy.config]
    assert tried
    for remedy in tried:
        assert (remedy.seconds, remedy.low) == (None, None)
        assert "other work" in remedy.note


def test_a_baseline_that_fails_ends_the_question(tmp_path):
    launcher = FakeLauncher({("measure", OWN): Outcome.ERROR})
    with pytest.raises(UserCodeError):
        asked(tmp_path, launcher)


def test_a_question_is_asked_once_even_if_the_step_alone_was_not_faster(tmp_path):
    def raised(spec, measured):
        changed = with_slow_input(spec, measured)
        return replace(changed, compute_is_read=False)

    asked(tmp_path, FakeLauncher(changed=raised))
    again = FakeLauncher(changed=raised)
    asked(tmp_path, again)
    assert OWN not in again.configs("measure")


def test_a_saved_tune_without_its_baseline_is_explained_by_its_answer(tmp_path):
    launcher = FakeLauncher({OWN: Outcome.TIMEOUT}, changed=with_slow_input)
    request = make_request(tmp_path, baseline=OWN.values())
    record = engine.tune(request, launcher, lambda event: None)
    assert remedies.explain_saved(record).config == record.config != OWN
    with pytest.raises(UsageError, match="no trial that finished"):
        remedies.explain_saved(replace(record, trials=(), runs=()))


def of_slow_data(**changes):
    """The remedies of an epoch that waits for its data, without any trial but the baseline's."""
    description = replace(DESCRIPTION, **changes)
    trial = read(compute=2000, inputs=510)
    log = TuneLog(
        limits=Limits(None, 2**33),
        machine=MACHINE,
        device="CPU",
        description=description,
        trials=(trial,),
        seconds=1.0,
        call_source=CallSource(),
    )
    return {remedy.change: remedy for remedy in remedies.explain(log, OWN).remedies}


def test_data_that_is_in_memory_is_not_to_be_kept_there():
    waits = of_slow_data()
    (kept,) = (remedy for change, remedy in waits.items() if "kept" in change)
    # the step alone takes a quarter of the epoch of 2 s
    assert kept.seconds == pytest.approx(0.5, abs=0.01)
    assert kept.low is None
    assert not any("kept" in change for change in of_slow_data(input_kind="arrays"))
    large = of_slow_data(sample_bytes=2**24)
    (kept,) = (remedy for change, remedy in large.items() if "kept" in change)
    assert (kept.seconds, kept.note) == (None, "only 8.00 GiB are free")


def test_why_workers_are_not_tuned_is_said_where_they_would_help():
    (_, remedy), *_ = of_slow_data().items()
    assert remedy.note == "not tried"
    untuned = {"workers, max_queue_size": "the data takes no such argument"}
    (_, remedy), *_ = of_slow_data(untuned=untuned).items()
    assert remedy.note == "the data takes no such argument"


def test_more_steps_a_call_are_tried_where_keras_may_take_much_of_a_step(tmp_path):
    def with_calls(spec, measured):
        """A step of 0.2 ms, and 1.8 ms of Keras for each call."""
        if not measured.samples_per_second:
            return measured
        steps = spec.config.steps_per_execution or 1
        rate = spec.config.batch_size / (0.0002 + 0.0018 / steps)
        return replace(
            measured,
            samples_per_second=rate,
            steady_samples_per_second=rate,
            compute_samples_per_second=rate,
            input_samples_per_second=1e7,
            epoch_gap_seconds=0.0,
            epoch_samples=2000,
        )

    described = replace(DESCRIPTION, defaults={"steps_per_execution": 1})
    launcher = FakeLauncher({"describe": described}, changed=with_calls)
    record = asked(tmp_path, launcher)
    assert [config.steps_per_execution for config in launcher.configs("measure")] == [
        1,
        32,
    ]
    assert record.cause == "keras"
    assert record.parts["keras"] == pytest.approx(2000 / 32 * 0.0018)
    (remedy,) = (each for each in record.remedies if each.part == "keras")
    assert remedy.low < 2000 / 32 * (0.0002 + 0.0018 / 32) < remedy.high
