"""The proposer: what it never proposes, what it explores, and when it stops."""

import itertools
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autofit.records.states import Outcome
from autofit.records.trial import Evidence, FitConfig, Limits, Measurement, Trial
from autofit.search.context import SearchContext
from autofit.search.failures import dominated_by
from autofit.search.frontier import LABELS, FrontierSearch, Proposal, Reason, difference
from autofit.search.rates import Rates
from autofit.search.space import SearchSpace, build_space
from tests.fakes import BASELINE, DESCRIPTION, KNOBS, MIB, arrays

SPACE = build_space(None, KNOBS, cores=8, sample_count=100_000)
WIDE = Limits(2**40, 2**40)


def proposer(limits=WIDE, **changes):
    return FrontierSearch(SPACE, BASELINE, SearchContext(DESCRIPTION, limits, **{"cores": 8, "on_cpu": False, **changes}))


def proposed(asked, trials):
    """The reason to stop, or the proposal."""
    decision = asked.propose(trials)
    return decision.stop_reason or decision.proposal


def left(asked, trials):
    return list(itertools.compress(asked.configs, asked.outlook(trials)[0].safe))


def failed(batch, outcome):
    return Trial(FitConfig(batch, 1, 10, False), Measurement(outcome, Evidence("by formula")))


def run(config, limits=WIDE, *, sample=1e-3, made=4e-3, capacity=6, held=1 * MIB):
    """A trial by formula, from the seconds of a sample in step and worker, busy workers, and bytes of a sample."""
    step = config.batch_size / (0.01 + sample * config.batch_size)
    workers = min(config.workers, capacity) if config.has_queue else 1
    device = 100 * MIB + held * config.batch_size
    host = 200 * MIB + (config.max_queue_size if config.has_queue else 1) * config.batch_size * MIB // 4
    evidence = Evidence("by formula")
    if device > limits.device_bytes:
        return Trial(config, Measurement(Outcome.DEVICE_OOM, evidence, host_peak_bytes=int(host)))
    if host > limits.host_bytes:
        return Trial(config, Measurement(Outcome.HOST_OOM, evidence, host_peak_bytes=limits.host_bytes))
    peaks = {"device_peak_bytes": device, "host_peak_bytes": int(host)}
    spreads = {"spread": 0.01, "compute_spread": 0.01, "input_spread": 0.01}
    rates = {"compute_samples_per_second": step, "input_samples_per_second": workers / made}
    rate = min(step, workers / made)
    return Trial(config, Measurement(Outcome.OK, evidence, samples_per_second=rate, **rates, **spreads, **peaks))


def searched(asked, limits=WIDE, most=20, seconds=0.0, **formula):
    """The trials of a whole search, their proposals, and why it ended."""
    trials, proposals = [], []
    while len(trials) < most:
        proposal = proposed(asked, trials)
        if isinstance(proposal, str):
            return trials, proposals, proposal
        trial = run(proposal.config, limits, **formula)
        trials.append(replace(trial, measurement=replace(trial.measurement, seconds=seconds)))
        proposals.append(proposal)
    return trials, proposals, "spent"


@settings(max_examples=15)
@given(st.floats(1e-5, 1e-1), st.floats(1e-5, 1e-1), st.integers(150, 5000), st.integers(300, 20_000), st.integers(1, 20))
def test_nothing_is_tried_twice_or_beyond_an_oom_or_far_beyond_what_ran(sample, made, device, host, held):
    limits = Limits(device * MIB, host * MIB)
    trials, _, _ = searched(proposer(limits), limits, most=12, sample=sample, made=made, held=held * MIB)
    assert len({t.config for t in trials}) == len(trials)
    for later, trial in enumerate(trials):
        before = trials[:later]
        largest = max((t.config.batch_size for t in before if t.measurement.outcome is Outcome.OK), default=None)
        assert largest is None or trial.config.batch_size <= 8 * largest
        for oom in (t for t in before if t.measurement.outcome.is_oom):
            assert not dominated_by(arrays(trial.config), arrays(oom.config), oom.measurement.outcome)[0]


@pytest.mark.parametrize(
    ("formula", "most", "share"),
    [
        ({}, 10, 0.97),
        ({"made": 1e-6}, 10, 0.97),  # bound by the step
        ({"sample": 1e-6, "made": 0.1, "capacity": 20}, 8, 0.95),  # bound by the input
        ({"sample": 1e-6, "capacity": 1}, 10, 0.95),  # nothing makes it faster
    ],
)
def test_the_best_is_found_in_a_few_trials(formula, most, share):
    trials, _, reason = searched(proposer(), **formula)
    best = max(run(config, **formula).measurement.samples_per_second for config in SPACE.configs())
    assert "expected to gain" in reason
    assert len(trials) <= most
    assert max(t.measurement.samples_per_second for t in trials) > share * best


def test_the_frontier_is_reached_without_an_oom():
    limits = Limits(1000 * MIB, 2**40)
    trials, _, _ = searched(proposer(limits), limits, sample=1e-5, made=1e-7)
    assert not any(t.measurement.outcome.is_oom for t in trials)
    assert max(t.measurement.device_peak_bytes for t in trials) > 0.85 * 1000 * MIB


@pytest.mark.parametrize(("made", "gains"), [(4e-3, True), (1e-6, False)])
def test_where_nothing_ran_what_is_expected_to_be_faster_than_the_baseline_is_tried(made, gains):
    others = [trial for trial in searched(proposer(), made=made)[0] if trial.config.batch_size != BASELINE.batch_size]
    context = SearchContext(DESCRIPTION, WIDE, cores=8, on_cpu=False)
    decision = FrontierSearch(replace(SPACE, batch_size=(BASELINE.batch_size,)), BASELINE, context).propose(others)
    if gains:
        proposed, present = (run(config, made=made).measurement for config in (decision.proposal.config, BASELINE))
        assert decision.stop_reason is None
        assert proposed.samples_per_second > 2 * present.samples_per_second
    else:
        assert "expected to gain" in decision.stop_reason


def test_where_nothing_that_ran_fits_any_more_what_is_likely_to_fit_is_tried():
    limits = Limits(120 * MIB, 2**40)  # for a batch of 20
    decision = proposer(limits).propose([run(config) for config in (BASELINE, FitConfig(256, 4, 4, False))])
    assert decision.stop_reason is None
    assert run(decision.proposal.config, limits).measurement.outcome is Outcome.OK
    assert decision.proposal.config.batch_size > 1


def test_after_too_many_ooms_nothing_larger_than_what_ran_is_proposed():
    ran = [run(FitConfig(b, 1, 10, False)) for b in (8, 32)]
    full = [failed(b, Outcome.DEVICE_OOM) for b in (2048, 1024)]
    allowed = [max(c.batch_size for c in left(proposer(), [*ran, *full[:count]])) for count in (1, 2)]
    assert allowed[1] == 32 < allowed[0]


def test_the_first_probe_is_small_where_nothing_is_known_and_the_second_another_batch():
    asked = proposer()
    first = proposed(asked, [])
    assert isinstance(first, Proposal)
    assert (first.config, first.reason) == (FitConfig(8, 1, 10, False), Reason.PROBE)
    second = proposed(asked, [run(first.config)])
    assert second.reason is Reason.PROMISE
    assert 8 < second.config.batch_size <= 64


SLOW = Trial(FitConfig(32, 1, 10, True), Measurement(Outcome.TIMEOUT, Evidence("ended at its deadline")))


@pytest.mark.parametrize(
    ("trials", "is_allowed", "is_left"),
    [  # what a failure leaves to try
        ([failed(8, Outcome.DEVICE_OOM)], lambda c: c.batch_size >= 8, False),
        ([failed(8, Outcome.CRASHED)], lambda c: c == FitConfig(8, 1, 10, False), False),
        ([failed(8, Outcome.TIMEOUT)], lambda c: c == FitConfig(8, 1, 10, False), False),
        ([run(FitConfig(32, 1, 10, False)), SLOW], lambda c: c.use_multiprocessing, False),  # slow to start
        ([run(FitConfig(8, 1, 10, False)), SLOW], lambda c: c.use_multiprocessing, True),
    ],
)
def test_a_failure_rules_out_what_would_fail_as_well(trials, is_allowed, is_left):
    assert any(map(is_allowed, left(proposer(), trials))) is is_left
    assert proposed(proposer(), trials).config not in [trial.config for trial in trials]


@pytest.mark.parametrize(
    ("config", "other", "expected"),
    [
        (FitConfig(64, 1, 10, False), FitConfig(32, 1, 10, False), "larger batch"),
        (FitConfig(16, 4, 10, False), FitConfig(32, 2, 10, False), "smaller batch, more workers"),
        (FitConfig(32, 2, 4, False), FitConfig(32, 4, 10, False), "fewer workers, shorter queue"),
        (FitConfig(32, 1, 4, False), FitConfig(32, 4, 10, False), "fewer workers"),
        (FitConfig(32, 4, 10, True), FitConfig(32, 4, 10, False), "processes"),
        (FitConfig(64), FitConfig(32), "larger batch"),
        (FitConfig(32), FitConfig(32), ""),
    ],
)
def test_the_difference_of_two_configs_is_named(config, other, expected):
    assert difference(config, other) == expected


def test_a_proposal_says_what_why_and_how_near_the_limit():
    proposal = Proposal(FitConfig(64), Reason.PROMISE, 0.123, 0.74, 0.2, 0.71, "larger batch")
    assert str(proposal) == "larger batch: predicted +12%, device memory 71% ± 3% of the limit"
    unsure = Proposal(FitConfig(64), Reason.PROMISE, -0.58, most_gain=0.3)
    assert re.findall(r"[+-]\d+%", str(unsure)) == ["-58%", "+30%"]
    assert re.findall(r"[+-]\d+%|\b0%", str(replace(unsure, gain=-0.001))) == ["0%", "+30%"]
    assert str(Proposal(FitConfig(64), Reason.PROBE)) == LABELS[Reason.PROBE]


RISING = {"sample": 1e-6, "made": 1e-9, "held": 35 * MIB}  # the rate grows with the batch, whatever its size
SMALL = Limits(1000 * MIB, 2**40)


def test_a_batch_that_may_not_fit_is_tried_where_its_gain_is_worth_an_oom_and_never_for_host_memory():
    trials, proposals, _ = searched(proposer(SMALL), SMALL, seconds=5.0, **RISING)
    risky = [index for index, proposal in enumerate(proposals) if proposal.reason is Reason.RISK]
    first = proposals[risky[0]]
    assert first.device_share > 0.97 > first.likely_share
    assert trials[risky[0]].measurement.outcome is Outcome.OK
    assert "worth the risk of running out of memory" in str(first)
    # an OOM takes as long as thousands of such trials
    _, proposals, _ = searched(proposer(SMALL), SMALL, seconds=0.01, **RISING)
    assert all(proposal.reason is not Reason.RISK for proposal in proposals)
    host = Limits(2**40, 1000 * MIB)
    _, proposals, _ = searched(proposer(host), host, seconds=5.0, **{**RISING, "held": MIB})
    assert all(proposal.reason is not Reason.RISK and proposal.host_share <= 0.97 for proposal in proposals)


@pytest.mark.parametrize(
    ("batch_sizes", "made", "sample", "tries_calls"),
    [((4, 8, 16, 64, 256), 3e-3, 2.5e-3, False), ((4, 64), 1e-3, 2e-3, True)],
)
def test_no_call_of_several_steps_is_tried_that_takes_over_a_second(batch_sizes, made, sample, tries_calls):
    space = SearchSpace(batch_sizes, (1, 2), (10,), (False,), steps_per_execution=(1, 8, 32))
    context = SearchContext(DESCRIPTION, WIDE, cores=8, on_cpu=False)
    asked = FrontierSearch(space, FitConfig(8, 1, 10, False, steps_per_execution=1), context)
    trials, _, _ = searched(asked, seconds=5.0, made=made, sample=sample)
    calls = [trial for trial in trials if (trial.config.steps_per_execution or 1) > 1]
    assert bool(calls) == tries_calls
    for config, rate in ((trial.config, trial.measurement.samples_per_second) for trial in calls):
        assert config.steps_per_execution * config.batch_size / rate < 1.2


def test_a_gain_that_is_as_uncertain_for_the_leader_is_no_reason_for_a_trial():
    """Rates that scattered by 30% leave every rate uncertain, but hardly the difference of two batch sizes."""
    space = SearchSpace((960, 1024), (1,), (10,), (False,))
    context = SearchContext(DESCRIPTION, WIDE, cores=8, on_cpu=False, tolerance=0.05)
    trial = run(FitConfig(1024, 1, 10, False), made=1e-6)
    scattered = Trial(trial.config, replace(trial.measurement, spread=0.3, compute_spread=0.3, input_spread=0.3))
    asked = FrontierSearch(space, FitConfig(1024, 1, 10, False), context)
    assert Rates([scattered], context).predict(arrays(trial.config, cores=8)).deviation[0] > 0.1
    assert "expected to gain" in proposed(asked, [scattered])


def test_a_warm_start_that_was_right_needs_no_second_trial():
    bound_by_input = {"sample": 1e-6, "made": 0.1, "capacity": 20}
    earlier, _, _ = searched(proposer(tolerance=0.05), **bound_by_input)
    asked = proposer(warm_start=tuple(earlier), tolerance=0.05)
    first = proposed(asked, [])
    assert first.reason is Reason.WARM_START
    trial = run(first.config, **bound_by_input)
    assert trial.samples_per_second > 0.95 * max(t.samples_per_second for t in earlier)
    assert "expected to gain" in proposed(asked, [trial])
    full = Trial(first.config, Measurement(Outcome.DEVICE_OOM, Evidence("full")))
    assert proposed(asked, [full]).config.batch_size < first.config.batch_size


def test_what_another_sampler_wants_is_moved_to_what_is_predicted_to_fit():
    limits = Limits(400 * MIB, 2**40)
    asked, trials = proposer(limits), [run(FitConfig(8, 1, 10, False), limits), run(FitConfig(64, 1, 10, False), limits)]
    wanted = FitConfig(96, 4, 10, False)
    assert asked.near(wanted, trials).proposal.config == wanted
    tried = asked.near(FitConfig(64, 1, 10, False), trials).proposal
    assert tried.config in (FitConfig(56, 1, 10, False), FitConfig(72, 1, 10, False))
    assert str(tried).startswith("nearest to batch 64, 1 thread, which was tried or may not fit: proposed by the sampler")
    large = asked.near(asked.snapped(FitConfig(10**6, 4, 9, False)), trials).proposal
    assert 200 <= large.config.batch_size <= 300
    assert large.config in left(asked, trials)
