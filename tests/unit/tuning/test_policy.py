"""What is decided from which readings, and that a tune can be replayed.

Also what runs beside each other show.
"""

import math
from dataclasses import replace

import optuna
import pytest

from autofit.records.intervals import pooled_half_width, welch_interval
from autofit.records.knobs import FitConfig
from autofit.records.states import Outcome, Stage
from autofit.records.trial import Evidence, Measurement, Trial
from autofit.tuning import claims, delivery
from autofit.tuning.policy import Compare, Policy, Run, Stop
from autofit.tuning.problem import build_problem
from tests.fakes import DESCRIPTION, MIB, FakeLauncher, make_request, tuned

BASELINE = FitConfig(32, 1, 10, False)
OWN = FitConfig(32, 4, 10, False)
OTHER = FitConfig(128, 4, 10, False)
FEW = {
    "batch_size": [32, 128],
    "workers": [1, 4],
    "max_queue_size": [10],
    "use_multiprocessing": [False],
}


def policy_of(tmp_path, describing_seconds=0.0, **changes):
    request = make_request(tmp_path, **{"space": FEW, **changes})
    return Policy(build_problem(request, DESCRIPTION), describing_seconds)


def read(config, rate, stage=Stage.SEARCH, seconds=2.0):
    measured = Measurement(
        Outcome.OK, Evidence(""), seconds, rate, spread=0.01, step_seconds=0.01
    )
    return Trial(config, measured, stage=stage)


def failed(config, outcome):
    return Trial(config, Measurement(outcome, Evidence("ended"), 20.0))


ALL = [
    *(read(BASELINE, rate) for rate in (1000.0, 1010.0)),
    *(read(OWN, rate) for rate in (2000.0, 2010.0)),
    *(read(OTHER, rate) for rate in (4000.0, 3990.0)),
    read(FitConfig(128, 1, 10, False), 1005.0),
]
USED_UP = {"max_trials": len(ALL)}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_trials": 12},
        {"max_trials": 12, "device_bytes": 330 * MIB, "host_bytes": 900 * MIB},
        {"max_trials": 12, "batch_size": "keep"},
        {"max_trials": 12, "batch_size": "largest", "device_bytes": 330 * MIB},
        {"max_trials": 12, "max_seconds": 600.0},
        {"max_trials": 8, "sampler": optuna.samplers.RandomSampler(seed=0)},
    ],
)
def test_each_stored_decision_comes_out_again_of_the_readings_before_it(
    tmp_path, changes
):
    space = {"workers": [1, 4], "max_queue_size": [10], "use_multiprocessing": [False]}
    asked = {"space": space, **changes}
    record = tuned(tmp_path, FakeLauncher(cliff=256), **asked)
    readings = {trial.number: trial for trial in (*record.trials, *record.runs)}
    readings = [readings[number] for number in range(len(readings))]
    policy = policy_of(tmp_path, **asked)
    for count, trial in enumerate(readings):
        step = policy.next_step(readings[:count], seconds=trial.decided_after)
        if isinstance(step, Compare):
            assert trial.stage is Stage.BESIDE
            break
        assert step.stage is trial.stage
        is_drawn = "sampler" in changes and step.stage is Stage.SEARCH
        assert is_drawn or step.config == trial.config
    else:
        assert isinstance(policy.next_step(readings, seconds=record.seconds), Stop)


@pytest.mark.parametrize("outcome", [Outcome.TIMEOUT, Outcome.CRASHED])
def test_three_trials_that_all_hang_or_crash_end_the_tune(tmp_path, outcome):
    policy = policy_of(tmp_path, max_trials=12, space={})
    readings = [failed(config, outcome) for config in (BASELINE, OWN, OTHER)]
    assert isinstance(policy.next_step(readings[:2]), Run)
    stop = policy.next_step(readings)
    assert stop.choice is None
    assert "the first 3 trials all timed out or crashed" in stop.reason


def test_a_config_that_has_run_is_run_again_where_that_is_worth_more_than_a_new_one(
    tmp_path,
):
    """Two configs read about the same, and one more reading decides.

    There is a baseline as well, and nothing new is left.
    """
    policy = policy_of(tmp_path, max_trials=12)
    noisy = [
        replace(trial, measurement=replace(trial.measurement, spread=0.3))
        for trial in (
            read(BASELINE, 1000.0),
            read(OWN, 1300.0),
            read(OTHER, 1320.0),
            ALL[-1],
        )
    ]
    step = policy.next_step(noisy)
    assert step.stage is Stage.AGAIN
    assert step.config in (BASELINE, OWN, OTHER)
    assert policy.next_step([*ALL, *ALL]).configs  # two more readings of each would not


def test_what_has_not_run_is_new_although_it_stands_in_for_a_baseline_outside_the_space(
    tmp_path,
):
    space = {"workers": [4], "max_queue_size": [10], "use_multiprocessing": [False]}
    policy = policy_of(tmp_path, max_trials=12, space=space, batch_size="keep")
    step = policy.next_step([read(BASELINE, 1000.0)])
    assert step.config != BASELINE
    assert step.stage is Stage.SEARCH


def test_the_answers_that_are_predicted_to_be_faster_are_compared_once(tmp_path):
    policy = policy_of(tmp_path, **USED_UP)
    step = policy.next_step(ALL)
    assert step == Compare((BASELINE, OWN, OTHER), step.reason)
    assert policy.next_step(ALL, seconds=17.0).configs == (
        BASELINE,
        OTHER,
    )  # of 15 trials' seconds
    assert policy.next_step(ALL, seconds=29.0).stage is Stage.CHOSEN
    described_long = policy_of(tmp_path, describing_seconds=15.0, **USED_UP)
    assert described_long.next_step(ALL, seconds=24.0).configs == step.configs
    level = [read(trial.config, 1000.0) for trial in ALL]
    assert isinstance(
        policy.next_step([*level, read(BASELINE, 1000.0, Stage.AGAIN)]), Stop
    )


def test_after_the_comparison_only_what_has_run_again_is_delivered(tmp_path):
    policy = policy_of(tmp_path, **USED_UP)
    rounds = [{BASELINE: 1000.0, OTHER: rate} for rate in (900.0, 901.0, 899.0)]
    runs = [
        read(config, rate, Stage.BESIDE)
        for one in rounds
        for config, rate in one.items()
    ]
    step = policy.next_step([*ALL, *runs], claims.Claim(rounds, "all is used up"))
    assert (step.config, step.stage) == (OWN, Stage.CHOSEN)  # OTHER has lost
    stop = policy.next_step(
        [*ALL, *runs, read(OWN, 2000.0, Stage.CHOSEN)],
        claims.Claim(rounds, "all is used up"),
    )
    assert (stop.choice.own, stop.choice.fastest, stop.reason) == (
        OWN,
        OWN,
        "all is used up",
    )


@pytest.mark.parametrize(("rate", "is_chosen"), [(4160.0, False), (4400.0, True)])
def test_what_was_compared_is_only_replaced_by_what_is_likely_faster(
    tmp_path, monkeypatch, rate, is_chosen
):
    """By the leads and their deviation of 10 %, the rival is faster in 65 and in 83 % of cases."""
    rival = FitConfig(128, 1, 10, False)
    rates = {BASELINE: 1000.0, OWN: 2000.0, OTHER: 4000.0, rival: rate}

    class Known(delivery.Beliefs):
        def __init__(self, *_):
            pass

        def rate(self, config):
            return rates[config], 0.1

        def _lead(self, config, other):
            return math.log(rates[config] / rates[other]), 0.1

    monkeypatch.setattr(delivery, "Beliefs", Known)
    problem = build_problem(make_request(tmp_path, space=FEW), DESCRIPTION)
    readings = [read(config, 1.0) for config in rates]
    assert delivery.choose(problem, readings).fastest == rival
    shown = claims.Shown(frozenset(), frozenset({OTHER}))
    chosen = delivery.choose(problem, readings, shown)
    assert (chosen.own, chosen.fastest) == (OWN, rival if is_chosen else OTHER)
    beaten = claims.Shown(frozenset({rival}))
    assert delivery.choose(problem, readings, beaten).fastest == OTHER


@pytest.mark.parametrize(
    "outcome", [Outcome.DEVICE_OOM, Outcome.ERROR, Outcome.TIMEOUT]
)
def test_an_answer_whose_further_run_fails_is_none(tmp_path, outcome):
    policy = policy_of(tmp_path, **USED_UP)
    stop = policy.next_step(
        [*ALL, failed(OTHER, outcome), read(OWN, 2000.0, Stage.CHOSEN)], seconds=100.0
    )
    assert stop.choice.fastest == OWN


def test_a_baseline_that_failed_is_neither_compared_nor_delivered(tmp_path):
    policy = policy_of(tmp_path, **USED_UP)
    oom = failed(BASELINE, Outcome.TIMEOUT)
    step = policy.next_step([*ALL, oom])
    assert (step.config, step.stage) == (OTHER, Stage.CHOSEN)


def test_seconds_that_are_too_few_are_named(tmp_path):
    policy = policy_of(tmp_path, **USED_UP, max_seconds=100.0)
    stop = policy.next_step(ALL, seconds=99.9)
    assert stop.choice.fastest == OTHER
    assert stop.needed_seconds > 100.0
    soon = policy_of(tmp_path, max_trials=12, max_seconds=100.0).next_step(
        ALL[:1], seconds=98.5
    )
    assert "max_seconds (100) leaves 2 s" in soon.reason


def test_the_interval_of_two_series_is_welchs():
    difference, half_width = welch_interval([1.0, 3.0, 2.0], [1.0, 1.0, 1.0])
    assert difference == 1.0
    # t of two degrees of freedom, 97.5 %
    assert half_width == pytest.approx(4.3027 / math.sqrt(3), rel=1e-4)
    alike = welch_interval([1.0, 3.0, 2.0], [11.0, 13.0, 12.0])
    assert alike == (
        -10.0,
        pytest.approx(2.7764 * math.sqrt(2 / 3), rel=1e-4),
    )  # of four
    assert welch_interval([1.0], [2.0]) == (-1.0, math.inf)
    assert welch_interval([2.0, 2.0], [1.0, 1.0]) == (1.0, 0.0)


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


def test_a_gain_is_shown_by_rounds_that_scatter_less_than_it():
    steady = [{BASELINE: 1000.0 * f, OWN: 2000.0 * f} for f in (1.0, 1.01, 1.02)]
    shown = claims.speedup(OWN, BASELINE, steady)
    assert (shown.is_shown, shown.pairs, round(shown.ratio, 6)) == (True, 3, 2.0)
    assert claims.speedup(OWN, BASELINE, []) is None
    scattered = [
        {BASELINE: b, OWN: o} for b, o in ((1000, 900), (700, 1500), (1100, 1400))
    ]
    assert not claims.speedup(OWN, BASELINE, scattered).is_shown
    assert claims.Shown.by(steady, BASELINE, 0.02) == (frozenset(), {OWN})
    assert claims.Shown.by(steady, OWN, 0.02) == ({BASELINE}, frozenset())
