"""The proposer: what it never proposes, what it explores, and when it stops."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autofit.records import confidence
from autofit.records.knobs import FitConfig
from autofit.records.states import Outcome, Phase
from autofit.records.trial import Evidence, Limits, Measurement, Trial
from autofit.search.context import SearchContext
from autofit.search.failures import dominated_by
from autofit.search.frontier import FrontierSearch, Reason
from autofit.search.space import SearchSpace, build_space
from tests.fakes import BASELINE, DESCRIPTION, KNOBS, MIB, arrays, use_quick_models

SPACE = build_space(None, KNOBS, cores=8, sample_count=100_000)
WIDE = Limits(2**40, 2**40)
INPUT_BOUND = {"sample": 1e-6, "made": 0.1, "capacity": 20}


def proposer(limits=WIDE, *, space=SPACE, baseline=BASELINE, **changes):
    return FrontierSearch(
        space,
        baseline,
        SearchContext(DESCRIPTION, limits, cores=8, on_cpu=False, **changes),
    )


def left(asked, trials):
    return list(itertools.compress(asked.configs, asked.outlook(trials)[0].safe))


def failed(batch, outcome, processes=False):
    return Trial(
        FitConfig(batch, 1, 10, processes), Measurement(outcome, Evidence("by formula"))
    )


def hung(workers):
    return Trial(
        FitConfig(32, workers, 10, False),
        Measurement(Outcome.TIMEOUT, Evidence("idle", hung=True)),
    )


def run(
    config,
    limits=WIDE,
    *,
    sample=1e-3,
    made=4e-3,
    capacity=6,
    held=1 * MIB,
    seconds=0.0,
):
    """A trial by formula.

    It follows from the seconds of a sample in step and worker, the workers that can be busy, and
    the bytes of a sample that are held.
    """
    step = config.batch_size / (0.01 + sample * config.batch_size)
    workers = min(config.workers, capacity) if config.has_queue else 1
    device = 100 * MIB + held * config.batch_size
    host = (
        200 * MIB
        + (config.max_queue_size if config.has_queue else 1)
        * config.batch_size
        * MIB
        // 4
    )
    evidence = Evidence("by formula")
    if device > limits.device_bytes:
        return Trial(
            config,
            Measurement(
                Outcome.DEVICE_OOM, evidence, seconds, host_peak_bytes=int(host)
            ),
        )
    if host > limits.host_bytes:
        return Trial(
            config,
            Measurement(
                Outcome.HOST_OOM, evidence, seconds, host_peak_bytes=limits.host_bytes
            ),
        )
    peaks = {"device_peak_bytes": device, "host_peak_bytes": int(host)}
    spreads = {"spread": 0.01, "compute_spread": 0.01, "input_spread": 0.01}
    rates = {
        "compute_samples_per_second": step,
        "input_samples_per_second": workers / made,
    }
    rate = min(step, workers / made)
    return Trial(
        config,
        Measurement(
            Outcome.OK,
            evidence,
            seconds,
            samples_per_second=rate,
            **rates,
            **spreads,
            **peaks,
        ),
    )


def searched(asked, limits=WIDE, most=20, **formula):
    """The trials of a whole search, their proposals, and why it ended."""
    trials = []
    proposals = []
    while len(trials) < most:
        decision = asked.propose(trials)
        if decision.stop_reason is not None:
            return trials, proposals, decision.stop_reason
        trials.append(run(decision.proposal.config, limits, **formula))
        proposals.append(decision.proposal)
    return trials, proposals, "spent"


@settings(max_examples=4)
@given(
    st.floats(1e-5, 1e-1),
    st.floats(1e-5, 1e-1),
    st.integers(150, 5000),
    st.integers(300, 20_000),
    st.integers(1, 20),
)
def test_nothing_is_tried_twice_or_beyond_an_oom_or_far_beyond_what_ran(
    sample, made, device, host, held
):
    limits = Limits(device * MIB, host * MIB)
    with pytest.MonkeyPatch.context() as patch:
        use_quick_models(patch)
        trials, _, _ = searched(
            proposer(limits), limits, most=10, sample=sample, made=made, held=held * MIB
        )
    assert len({t.config for t in trials}) == len(trials)
    for later, trial in enumerate(trials):
        before = trials[:later]
        largest = max(
            (
                t.config.batch_size
                for t in before
                if t.measurement.outcome is Outcome.OK
            ),
            default=None,
        )
        sizes = [
            size for size in SPACE.batch_size if largest is not None and size > largest
        ]
        assert largest is None or trial.config.batch_size <= max(
            8 * largest, min(sizes, default=0)
        )
        for oom in (t for t in before if t.measurement.outcome.is_oom):
            assert not dominated_by(
                arrays(trial.config), arrays(oom.config), oom.measurement.outcome
            )[0]


@pytest.mark.parametrize(
    ("formula", "most", "share"),
    [
        ({}, 10, 0.97),
        ({"made": 1e-6}, 10, 0.97),  # bound by the step
        (INPUT_BOUND, 8, 0.95),
        ({"sample": 1e-6, "capacity": 1}, 12, 0.95),  # nothing makes it faster
    ],
)
def test_the_best_is_found_in_a_few_trials(formula, most, share):
    trials, _, reason = searched(proposer(), **formula)
    best = max(run(config, **formula).samples_per_second for config in SPACE.configs())
    assert "expected to gain" in reason
    assert len(trials) <= most
    assert max(trial.samples_per_second for trial in trials) > share * best


def test_after_too_many_ooms_nothing_larger_than_what_ran_is_proposed():
    ran = [run(FitConfig(b, 1, 10, False)) for b in (8, 32)]
    full = [failed(b, Outcome.DEVICE_OOM) for b in (2048, 1024)]
    allowed = [
        max(c.batch_size for c in left(proposer(), [*ran, *full[:count]]))
        for count in (1, 2)
    ]
    assert allowed[1] == 32 < allowed[0]


@pytest.mark.parametrize(
    ("trials", "is_allowed", "is_left"),
    [  # what a failure leaves to try
        (
            [failed(8, Outcome.CRASHED)],
            lambda c: c == FitConfig(8, 1, 10, False),
            False,
        ),
        (
            [run(BASELINE), failed(32, Outcome.TIMEOUT, True)],
            lambda c: c.use_multiprocessing,
            False,
        ),  # slow to start
        (
            [run(BASELINE), hung(4)],
            lambda c: c.workers >= 4 and c.has_queue and not c.use_multiprocessing,
            False,
        ),
        (
            [run(BASELINE), hung(4)],
            lambda c: c.workers == 2 and not c.use_multiprocessing,
            True,
        ),
        (
            [run(FitConfig(8, 1, 10, False)), failed(32, Outcome.TIMEOUT, True)],
            lambda c: c.use_multiprocessing,
            True,
        ),
    ],
)
def test_a_failure_rules_out_what_would_fail_as_well(trials, is_allowed, is_left):
    assert any(map(is_allowed, left(proposer(), trials))) is is_left
    assert proposer().propose(trials).proposal.config not in [
        trial.config for trial in trials
    ]


SMALL, NO_DEVICE_LIMIT = Limits(1000 * MIB, 2**40), Limits(2**40, 1000 * MIB)


@pytest.mark.parametrize(
    ("limits", "held", "seconds", "is_risky"),
    [
        (SMALL, 35 * MIB, 5.0, True),
        (
            SMALL,
            35 * MIB,
            0.01,
            False,
        ),  # an OOM takes as long as thousands of such trials
        (NO_DEVICE_LIMIT, MIB, 5.0, False),
    ],
)
def test_a_batch_that_may_not_fit_is_tried_where_its_gain_is_worth_an_oom_and_never_for_host_memory(
    limits, held, seconds, is_risky
):
    # the rate grows with the batch, whatever its size
    trials, proposals, _ = searched(
        proposer(limits), limits, sample=1e-6, made=1e-9, held=held, seconds=seconds
    )
    risky = [
        index
        for index, proposal in enumerate(proposals)
        if proposal.reason is Reason.RISK
    ]
    assert bool(risky) is is_risky
    assert all(proposal.host_share <= 0.97 for proposal in proposals)
    if risky:
        assert (
            proposals[risky[0]].device_share > 0.97 > proposals[risky[0]].likely_share
        )
        assert trials[risky[0]].measurement.outcome is Outcome.OK


def test_where_no_size_is_within_a_leap_of_those_that_ran_the_next_one_is_tried():
    asked = proposer(
        space=replace(SPACE, batch_size=(16, 512)), baseline=FitConfig(16, 1, 10, False)
    )
    assert 512 in {trial.config.batch_size for trial in searched(asked, made=1e-6)[0]}


@pytest.mark.parametrize(
    ("batch_sizes", "made", "sample", "tries_calls"),
    [((4, 8, 16, 64, 256), 3e-3, 2.5e-3, False), ((4,), 1e-3, 2e-3, True)],
)
def test_no_call_of_several_steps_is_tried_that_takes_over_a_second(
    batch_sizes, made, sample, tries_calls
):
    space = SearchSpace(
        batch_sizes, (1, 2), (10,), (False,), steps_per_execution=(1, 8, 32)
    )
    asked = proposer(
        space=space, baseline=FitConfig(8, 1, 10, False, steps_per_execution=1)
    )
    calls = [
        t
        for t in searched(asked, seconds=5.0, made=made, sample=sample)[0]
        if t.config.steps_per_execution > 1
    ]
    assert bool(calls) == tries_calls
    for trial in calls:
        assert (
            trial.config.steps_per_execution
            * trial.config.batch_size
            / trial.samples_per_second
            < 1.2
        )


def test_a_warm_start_that_was_right_needs_no_second_trial():
    earlier, _, _ = searched(proposer(tolerance=0.05), **INPUT_BOUND)
    asked = proposer(warm_start=tuple(earlier), tolerance=0.05)
    first = asked.propose([]).proposal
    assert first.reason is Reason.WARM_START
    trial = run(first.config, **INPUT_BOUND)
    assert trial.samples_per_second > 0.95 * max(t.samples_per_second for t in earlier)
    assert "expected to gain" in asked.propose([trial]).stop_reason
    full = Trial(first.config, Measurement(Outcome.DEVICE_OOM, Evidence("full")))
    assert asked.propose([full]).proposal.config.batch_size < first.config.batch_size


def test_fewer_sizes_are_compiled_the_longer_that_takes():
    description = replace(DESCRIPTION, jit_compile=True, versions={"backend": "jax"})
    context = SearchContext(description, WIDE, cores=8, on_cpu=False)
    counts = []
    for compiling in (0.0, 20.0):
        asked = FrontierSearch(SPACE, BASELINE, context)
        trials = []
        compiled = set()
        while len(trials) < 8:
            config = asked.propose(trials).proposal.config
            first = 0.0 if config.batch_size in compiled else compiling
            compiled.add(config.batch_size)
            trial = run(config, seconds=5.0 + first)
            phases = {Phase.FIRST_STEP: first}
            measured = replace(trial.measurement, phase_seconds=phases)
            trials.append(replace(trial, measurement=measured))
        counts.append(len(compiled))
    assert counts[1] <= counts[0] - 2


@pytest.mark.parametrize("is_short", [False, True])
def test_with_time_for_few_trials_nothing_is_tried_that_is_predicted_to_be_slower(
    is_short,
):
    gains = []
    for batch, made in itertools.product((32, 128, 512), (1e-3, 1e-2, 1e-1)):
        asked = proposer(baseline=replace(BASELINE, batch_size=batch))
        trials = []
        while len(trials) < 8:
            decision = asked.propose(trials, is_short=is_short)
            if decision.stop_reason is not None:
                break
            if decision.proposal.reason is Reason.PROMISE:
                gains.append(decision.proposal.gain)
            trials.append(run(decision.proposal.config, made=made))
    assert (min(gains) > 0) == is_short


def test_the_upper_end_of_a_predicted_gain_follows_the_level_of_confidence(monkeypatch):
    trials = [run(FitConfig(32, 1, 10, False)), run(FitConfig(64, 1, 10, False))]
    usual = proposer().propose(trials).proposal
    monkeypatch.setattr(confidence, "LEVEL", 0.9)
    lower = proposer().propose(trials).proposal
    assert (lower.config, lower.gain) == (usual.config, usual.gain)
    assert usual.gain < lower.most_gain < usual.most_gain
