"""When rounds of runs decide, by the readings of all configs, and what they decide."""

import math

import numpy as np
import pytest

from autofit.records.intervals import pooled_half_width, sequential_interval
from autofit.records.result import LOOKS
from autofit.records.states import Outcome
from autofit.records.trial import FitConfig
from autofit.tuning.answers import MOST_CANDIDATES, Answers

BASELINE, OWN, OTHER = (
    FitConfig(32, 1, 10, False),
    FitConfig(32, 4, 10, False),
    FitConfig(128, 4, 10, False),
)


def answers_of(own_batch=32, *, baseline_may_win=True, rates=(1.0, 2.0, 3.0)):
    """The answers with the candidates that these rates of the baseline, OWN and OTHER propose."""
    answers = Answers(BASELINE, 0.02, own_batch, baseline_may_win=baseline_may_win)
    assert answers.propose(dict(zip((BASELINE, OWN, OTHER), rates, strict=True)))
    return answers


def add(answers, noise=(1.0, 1.01, 1.02), **rates):
    """Add a round for each factor of `noise`, in which the configs run at about these rates; return both answers."""
    configs = {"baseline": BASELINE, "own": OWN, "other": OTHER}
    for factor in noise:
        answers.add_round({configs[name]: rate * factor for name, rate in rates.items()})
    return answers.same_batch.answer, answers.fastest.answer


def test_the_interval_of_two_series_is_welchs():
    difference, half_width = sequential_interval([1.0, 3.0, 2.0], [1.0, 1.0, 1.0], 0.985)
    assert difference == 1.0
    assert half_width == pytest.approx(
        5.6428 / math.sqrt(3), rel=1e-4
    )  # t of two degrees of freedom, 98.5 %
    alike = sequential_interval([1.0, 3.0, 2.0], [11.0, 13.0, 12.0], 0.985)
    assert alike == (-10.0, pytest.approx(3.2978 * math.sqrt(2 / 3), rel=1e-4))  # of four
    assert sequential_interval([1.0], [2.0], 0.98) == (-1.0, math.inf)
    assert sequential_interval([2.0, 2.0], [1.0, 1.0], 0.98) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("series", "half_width"),
    [
        ([[1.0, 3.0]], 12.7062),
        ([[1.0, 2.0, 3.0]], 4.303 / math.sqrt(3)),
        ([[1.0, 3.0], [11.0, 13.0]], 4.3027),
        ([[1.0, 3.0], [12.0]], 12.7062),
        ([[1.0], [2.0], []], math.inf),
    ],
)
def test_the_interval_is_students_by_the_scatter_of_all_runs(series, half_width):
    assert pooled_half_width(*series) == pytest.approx(half_width, rel=1e-4)


@pytest.mark.parametrize(
    ("chosen", "baseline", "answer"),
    [
        ([200, 210, 205], [100, 98, 101], OTHER),  # faster
        ([200, 210], [100, 98], None),  # too few rounds to say how much runs differ
        ([100, 100.02, 100.01], [100, 99.98, 100], BASELINE),  # not by more than the tolerance
        ([150, 110, 120], [100, 98, 100], None),  # open
        ([150, 80, 100], [100, 120, 110], BASELINE),  # slower so far: not worth more
        (
            [104, 150, 90],
            [100, 98, 101],
            BASELINE,
        ),  # faster so far, but eight rounds would hardly show it
        (
            [120, 90, 118, 104, 125, 96, 119, 102],
            [100, 98, 100, 99, 101, 103, 97, 100],
            BASELINE,
        ),  # after eight
    ],
)
def test_rounds_run_until_they_answer_whether_the_config_is_faster(chosen, baseline, answer):
    answers = answers_of(None)
    for pair in zip(chosen, baseline, strict=True):
        answers.add_round(dict(zip((OTHER, BASELINE), pair, strict=True)))
    assert answers.is_open is (answer is None)
    assert answers.fastest.answer == (answer or BASELINE)


@pytest.mark.parametrize("scatter", [1.0, 0.3])
def test_at_three_looks_few_equal_configs_are_called_faster(scatter):
    draws = np.random.default_rng(0).normal(size=(400, 2, 8)) * np.array([[0.1], [0.1 * scatter]])
    wrong = 0
    for chosen, baseline in np.exp(draws).tolist():
        answers = answers_of(None)
        for pair in zip(chosen, baseline, strict=True):
            if answers.is_open:
                answers.add_round(dict(zip((OTHER, BASELINE), pair, strict=True)))
        wrong += answers.fastest.answer == OTHER
    assert wrong <= 0.06 * len(draws)


@pytest.mark.parametrize(("other", "fastest"), [(6.0, OTHER), (2.0, OWN), (1.5, OWN)])
def test_the_fastest_is_compared_again_once_another_config_is_the_answer_at_the_own_batch_size(
    other, fastest
):
    answers = answers_of()
    for noise in (1.0, 1.6, 0.9, 1.0, 1.0):
        if len(answers.log_rates(OTHER)) == LOOKS[0]:
            assert (answers.same_batch.answer, answers.fastest.answer) == (BASELINE, OTHER)
        answers.add_round({BASELINE: 1.0, OWN: 2.0 * noise, OTHER: other})
    assert (answers.same_batch.answer, answers.fastest.answer) == (OWN, fastest)
    assert not answers.fastest.is_open


def test_what_is_not_shown_leaves_the_rounds_that_go_on():
    answers = answers_of()
    for noise in (1.0, 1.3, 0.8):
        answers.add_round({BASELINE: 1.0, OWN: 0.9, OTHER: 1.4 * noise})
    assert (answers.same_batch.is_open, answers.fastest.is_open) == (False, True)
    assert set(answers.next_round()) == {BASELINE, OTHER}
    assert answers.rounds_to_look() == (2, False)


def test_an_answer_has_few_candidates_and_later_ones_need_more_evidence():
    answers = Answers(BASELINE, 0.02, None, baseline_may_win=True)
    *others, further = [
        FitConfig(128, workers, 10, False) for workers in range(MOST_CANDIDATES + 1)
    ]
    widths = []
    for other in others:
        assert answers.propose({BASELINE: 1.0, other: 2.0})
        for noise in (1.0, 1.1, 0.9):
            answers.add_round({BASELINE: 1.0, other: 0.95 * noise})
        widths.append(answers.speedup(other).high / answers.speedup(other).low)
    assert widths == sorted(set(widths))
    assert not answers.propose({BASELINE: 1.0, further: 2.0})


def test_what_was_beaten_or_is_not_likely_to_be_faster_is_no_candidate():
    answers = answers_of()
    add(answers, baseline=1.0, own=2.0, other=3.0)
    for rates in ({BASELINE: 9.0, OWN: 8.0, OTHER: 3.0}, {BASELINE: 1.0, OWN: 2.0, OTHER: 3.0}, {}):
        assert not answers.propose(rates)
    assert not Answers(BASELINE, 0.02, 32, baseline_may_win=True).propose(
        {BASELINE: 1.0, OWN: 1.01, OTHER: 1.01}
    )


def test_without_a_baseline_the_candidate_is_the_answer_once_it_has_run():
    answers, failing = answers_of(baseline_may_win=False), answers_of()
    assert answers.fastest.answer is None
    assert add(answers, baseline=2.0, own=1.0, other=1.0) == (OWN, OWN)
    assert answers.speedup(OWN).is_loss
    failing.drop(BASELINE, Outcome.DEVICE_OOM)
    assert set(failing.next_round()) == {OWN, OTHER}
    assert add(failing, own=1.0, other=3.0) == (OWN, OTHER)
    assert failing.speedup(OWN).baseline_outcome is Outcome.DEVICE_OOM


def test_a_candidate_that_fails_is_out_and_another_follows():
    answers, smaller = answers_of(), FitConfig(64, 4, 10, False)
    answers.drop(OTHER, Outcome.DEVICE_OOM)
    assert add(answers, baseline=1.0, own=2.0) == (OWN, OWN)
    assert answers.propose({OWN: 2.0, BASELINE: 1.0, smaller: 4.0})
    assert answers.fastest.candidate == smaller
    answers.give_up()
    assert not answers.is_open
