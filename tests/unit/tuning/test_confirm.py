"""The confirmation: rounds of runs, what fails in them, and what a killed tune keeps."""

import itertools
from collections import Counter
from dataclasses import replace

import pytest

from autofit.records.knobs import FitConfig
from autofit.records.states import Outcome
from autofit.records.trial import Evidence, Limits, Measurement, Trial
from autofit.report.html import page
from tests.fakes import BASELINE, MIB, FakeLauncher, make_request, tune, tuned

PLAIN = {"workers": [1], "max_queue_size": [10], "use_multiprocessing": [False]}
FEW = {
    "batch_size": [64, 128, 256],
    "workers": [2, 4],
    "max_queue_size": [10],
    "use_multiprocessing": [False],
}


@pytest.mark.parametrize("outcome", [Outcome.DEVICE_OOM, Outcome.ERROR])
def test_a_winner_that_fails_is_demoted_and_the_next_confirmed(tmp_path, outcome):
    first = tuned(tmp_path / "a", space=FEW).config
    second = tuned(
        tmp_path / "b", FakeLauncher({("confirm", first): outcome}), space=FEW
    )
    assert second.config != first
    assert not outcome.is_oom or second.config.batch_size < first.batch_size
    assert [t.measurement.outcome for t in second.trials if t.config == first] == [
        Outcome.OK,
        outcome,
    ]
    # it counts once, and not as one of the search
    (failed,) = [run for run in second.runs if run.measurement.outcome is outcome]
    assert failed in second.trials
    assert failed.stage != "search"
    assert len(second.searched) == len(second.trials) - 1
    assert (
        page.compact(second).count(f"{len(second.searched)} configurations tried") == 1
    )


def confirming_at(multiples):
    """Configs other than the baseline read well in the search.

    They confirm at these multiples of its rate.
    """
    factors = itertools.cycle(multiples)

    def changed(spec, measured):
        if spec.role == "measure":
            return measured
        multiple = 1.0 if spec.config == BASELINE else next(factors)
        return replace(measured, samples_per_second=1000.0 * multiple)

    return FakeLauncher(changed=changed)


def test_a_likely_gain_that_is_not_shown_is_delivered_with_the_figures_of_all_readings(
    tmp_path,
):
    record = tuned(tmp_path, confirming_at((1.5, 0.7)), max_trials=3)
    answer = record.fastest
    ran = {run.config: run for run in record.runs}
    assert answer.config != BASELINE
    assert answer.config in ran  # after it was chosen
    assert answer.probability >= 0.8
    assert answer.confirmed
    assert not answer.speedup.is_shown
    assert answer.speedup.low < answer.speedup.ratio < answer.speedup.high
    assert answer.samples_per_second < 3000.0  # which it read in the search


@pytest.mark.parametrize("multiples", [(0.58,), (1.01,)])
def test_a_config_whose_pairs_show_no_gain_beyond_the_tolerance_is_never_delivered(
    tmp_path, multiples
):
    record = tuned(tmp_path, confirming_at(multiples), max_trials=3)
    counts = Counter(run.config for run in record.runs)
    assert max(counts.values()) >= 3
    assert record.config == BASELINE or counts[record.config] < 3


def test_a_baseline_that_stays_has_no_gain(tmp_path):
    space = {"batch_size": [32, 64], **PLAIN}
    record = tuned(tmp_path, confirming_at((0.58,)), max_trials=3, space=space)
    assert record.config == BASELINE
    assert record.data_kwargs["batch_size"] == 32
    assert (record.speedup.ratio, record.speedup.is_shown) == (1.0, False)
    assert record.fastest.probability is None


def test_at_equal_speed_the_batch_of_the_user_is_kept(tmp_path):
    level = {
        "samples_per_second": 1000.0,
        "compute_samples_per_second": 1000.0,
        "input_samples_per_second": 4000.0,
    }
    launcher = FakeLauncher(changed=lambda spec, measured: replace(measured, **level))
    record = tuned(
        tmp_path, launcher, space=FEW, baseline={"batch_size": 128, "workers": 2}
    )
    assert record.config == FitConfig(128, 2, 10, False)


def test_a_baseline_outside_the_space_is_compared_with_but_never_the_answer(tmp_path):
    record = tuned(
        tmp_path, space={"batch_size": [8, 16], **PLAIN}, baseline={"workers": 4}
    )
    assert (record.config.workers, record.speedup.baseline.workers) == (1, 4)
    assert record.speedup.ratio < 1


def test_the_own_batch_size_is_tried_although_the_space_leaves_it_out(tmp_path):
    record = tuned(
        tmp_path,
        space={
            "batch_size": [8, 16],
            "max_queue_size": [10],
            "use_multiprocessing": [False],
        },
    )
    assert record.same_batch.config.batch_size == 32
    assert record.same_batch.speedup.is_shown
    assert record.fastest == record.same_batch  # smaller batches are slower here


def test_a_tune_that_was_ended_goes_on_with_its_readings_and_compares_the_answers_anew(
    tmp_path,
):
    first = FakeLauncher()
    second = FakeLauncher()
    third = FakeLauncher()
    ended = []

    def interrupt(event):
        if isinstance(event, Trial):
            ended.append(event)
            if event.stage == "beside" and event.config == BASELINE:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(make_request(tmp_path, space=FEW), first, interrupt)
    record = tuned(tmp_path, second, space=FEW)
    assert second.configs("measure") == []
    assert [run for run in record.runs if run in ended] == [
        t for t in ended if t in record.runs
    ]
    beside = [
        run.config for run in record.runs if run.stage == "beside" and run not in ended
    ]
    assert beside == second.configs("confirm")
    assert beside.count(BASELINE) == record.speedup.pairs == 3
    tuned(tmp_path, third, space=FEW, tolerance=0.03)  # another answer is asked for
    assert third.configs("measure") == []
    assert third.configs("confirm").count(BASELINE) == 3


@pytest.mark.parametrize("limit", [4096 * MIB, 8192 * MIB])
def test_a_confirming_run_that_ran_out_of_memory_counts_in_a_later_tune_under_the_same_limit_only(
    tmp_path, limit
):
    first = tuned(tmp_path / "whole", space=FEW).config
    asked = {"space": FEW, "host_memory": "80%"}

    def ends(spec, measured):
        if spec.role == "confirm" and measured.outcome is Outcome.OK:
            if spec.config != first:
                raise KeyboardInterrupt
            return Measurement(
                Outcome.HOST_OOM, Evidence("host full"), 3.0, started_at=7.0
            )
        return measured

    launcher = FakeLauncher()
    with pytest.raises(KeyboardInterrupt):
        tuned(
            tmp_path,
            FakeLauncher(changed=ends),
            **asked,
            limits=Limits(None, 4096 * MIB),
        )
    record = tuned(tmp_path, launcher, **asked, limits=Limits(None, limit))
    has_grown = limit > 4096 * MIB
    assert (first in launcher.configs("confirm")) is has_grown
    assert (
        Outcome.HOST_OOM in [run.measurement.outcome for run in record.runs]
    ) is not has_grown
    assert all(trial.measurement.outcome is Outcome.OK for trial in record.searched)


def test_a_choice_that_disappoints_gives_way_to_the_next_best(tmp_path):
    """What is chosen first runs at a third of its speed when it is confirmed.

    That happens after a reading that was noise.
    """
    first = tuned(tmp_path / "a")

    def changed(spec, measured):
        disappoints = spec.role == "confirm" and spec.config == first.config
        return (
            replace(measured, samples_per_second=measured.samples_per_second / 3)
            if disappoints
            else measured
        )

    second = tuned(tmp_path / "b", FakeLauncher(changed=changed))
    assert second.config != first.config
    assert second.samples_per_second > 0.7 * first.samples_per_second
    assert {first.config, second.config} <= {run.config for run in second.runs}
