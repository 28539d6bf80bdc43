"""The throughput surrogate: what its models recover, their uncertainty, and the correction of their residuals."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from autofit.records.states import Outcome
from autofit.records.trial import Evidence, FitConfig, Limits, Measurement, Trial
from autofit.search.config_arrays import ConfigArrays
from autofit.search.context import SearchContext
from autofit.search.surrogate.throughput import ThroughputSurrogate, log_rates
from tests.fakes import DESCRIPTION

SEEN = [FitConfig(8, 1, 10, False), FitConfig(64, 4, 4, False), FitConfig(256, 2, 10, True), FitConfig(128, 8, 20, False)]
ALL = [
    FitConfig(b, w, q, mp)
    for b, w, q, mp in itertools.product((8, 32, 128, 512, 1024), (1, 2, 4, 8), (2, 10, 20), (False, True))
]


def truth(config):
    """(fit, step, input): a step of 2 ms + 0.1 ms a sample; 0.25 ms a sample to make, up to 5 workers."""
    step = config.batch_size / (2e-3 + 1e-4 * config.batch_size)
    workers = config.workers if config.has_queue else 1
    made = 4000 * min(workers, 5)
    return min(step, made), step, made


def ran(config, scale=1.0, ceilings=True, spread=0.02):
    fit, step, made = truth(config)
    evidence = Evidence("ran to its end")
    rates = {"compute_samples_per_second": step, "input_samples_per_second": made} if ceilings else {}
    spreads = {"spread": spread, "compute_spread": spread, "input_spread": spread}
    return Trial(config, Measurement(Outcome.OK, evidence, samples_per_second=scale * fit, **spreads, **rates))


def surrogate(trials, on_cpu=False, cores=8, takes_turns=False):
    description = replace(DESCRIPTION, sample_bytes=1000, takes_turns=takes_turns)
    return ThroughputSurrogate(trials, SearchContext(description, Limits(None, 2**40), cores, on_cpu))


def test_four_trials_predict_the_rest():
    predicted = surrogate([ran(c) for c in SEEN]).predict(ConfigArrays.of(ALL))
    errors = np.abs(predicted[0] - np.log([truth(c)[0] for c in ALL]))
    assert np.median(errors) < 0.05
    assert np.percentile(errors, 90) < 0.25


def test_it_is_surer_near_what_has_run_than_far_from_it():
    one = surrogate([ran(SEEN[0])])
    near, far = one.predict(ConfigArrays.of([SEEN[0], FitConfig(1024, 8, 20, True)]))[1]
    assert near < 0.05
    assert far > 0.5


def test_trials_make_it_surer():
    at = ConfigArrays.of([FitConfig(1024, 8, 20, False)])
    widths = [float(surrogate([ran(c) for c in SEEN[:n]]).predict(at)[1][0]) for n in (1, 2, 4)]
    assert widths == sorted(widths, reverse=True)


def test_rates_that_scattered_while_they_were_timed_make_it_less_sure_of_what_more_workers_bring():
    more = ConfigArrays.of([FitConfig(64, 4, 10, False)])
    seen = FitConfig(64, 1, 10, False), FitConfig(64, 2, 10, False)
    steady, scattered = (
        float(surrogate([ran(c, spread=spread) for c in seen]).predict(more)[1][0]) for spread in (0.02, 0.3)
    )
    assert scattered > 1.5 * steady


def test_more_threads_are_expected_to_bring_something_where_a_second_one_brought_less_than_all():
    """As reading from a disk: one thread 2,400 samples/s, two 3,500, four 5,300."""
    seen = {FitConfig(64, 1, 10, False): 2400.0, FitConfig(64, 2, 10, False): 3500.0}
    trials = []
    for config, made in seen.items():
        rates = {"samples_per_second": made, "compute_samples_per_second": 5e4, "input_samples_per_second": made}
        trials.append(Trial(config, Measurement(Outcome.OK, Evidence("ran to its end"), spread=0.02, **rates)))
    predicted = surrogate(trials).predict(ConfigArrays.of([*seen, FitConfig(64, 4, 10, False)]))
    two, four = predicted[0][1:]
    assert four > two + 0.05
    assert abs(four - math.log(5300)) < 2 * predicted[1][2]


def test_what_the_forms_leave_over_is_corrected_where_it_was_seen_and_near_it():
    dip = FitConfig(128, 4, 10, False)
    others = [ran(c) for c in (*SEEN, FitConfig(512, 4, 10, False))]
    without, seen = surrogate(others), surrogate([*others, ran(dip, scale=0.8)])
    at = ConfigArrays.of([dip, FitConfig(128, 4, 20, False), FitConfig(8, 1, 10, False)])
    measured, near, far = seen.predict(at)[0] - without.predict(at)[0]
    assert measured < -0.1
    assert near == pytest.approx(measured, abs=0.02)
    assert abs(far) < 0.05


def test_a_rate_is_not_expected_to_pass_its_ceilings():
    trials = [ran(FitConfig(b, 1, 10, False)) for b in (8, 64, 512)]
    compute_bound = surrogate(trials).predict(ConfigArrays.of([FitConfig(512, w, 10, False) for w in (2, 4, 8)]))
    best = math.log(truth(FitConfig(512, 8, 10, False))[1])
    assert (compute_bound[0] < best + 0.03).all()


def test_it_learns_without_the_ceilings_too():
    trials = [ran(c, ceilings=False) for c in (*SEEN, FitConfig(16, 2, 4, False), FitConfig(512, 4, 10, False))]
    predicted = surrogate(trials).predict(ConfigArrays.of([c.config for c in trials]))
    assert predicted[0] == pytest.approx(np.log([truth(c.config)[0] for c in trials]), abs=0.1)


def test_one_trial_without_anything_else_is_enough_to_begin():
    predicted = surrogate([ran(SEEN[0], ceilings=False)]).predict(ConfigArrays.of(ALL))
    assert np.isfinite(predicted[0]).all()
    assert np.isfinite(predicted[1]).all()


def test_the_join_is_never_above_the_lower_ceiling():
    draw = np.random.default_rng(0)
    step, inputs, fit = log_rates(draw.normal(-3, 2, (50, 13)), ConfigArrays.of(ALL))
    assert (fit <= np.minimum(step, inputs) + 1e-9).all()


def test_a_rounder_batch_is_expected_to_be_faster_than_its_neighbours():
    trials = [ran(FitConfig(b, 4, 10, False)) for b in (16, 64, 256)]
    at = ConfigArrays.of([FitConfig(128, 4, 10, False), FitConfig(136, 4, 10, False)])
    rounder, odd = surrogate(trials).predict(at)[0]
    slope = math.log(truth(FitConfig(136, 4, 10, False))[0] / truth(FitConfig(128, 4, 10, False))[0])
    assert odd - rounder < slope


def test_where_step_and_input_take_turns_a_queue_is_known_to_help_after_one_trial():
    config = FitConfig(64, 1, 10, False)
    step, made = 3000.0, 3000.0
    fit = 1 / (1 / step + 1 / made)
    measurement = Measurement(
        Outcome.OK,
        Evidence("ran to its end"),
        samples_per_second=fit,
        spread=0.02,
        compute_samples_per_second=step,
        input_samples_per_second=made,
    )
    configs = ConfigArrays.of([config, FitConfig(64, 2, 10, False)])
    gains = {}
    for takes_turns in (False, True):
        predicted = surrogate([Trial(config, measurement)], on_cpu=True, cores=2, takes_turns=takes_turns).predict(configs)
        alone, queued = np.exp(predicted[0])
        gains[takes_turns] = queued / alone
    assert gains[True] > 1.3
    assert gains[True] > gains[False]


def test_more_steps_in_a_call_are_expected_to_help_small_batches_and_the_gain_is_learned():
    one, many = (FitConfig(8, 1, 10, False, steps_per_execution=steps) for steps in (1, 32))
    larger, larger_many = (FitConfig(1024, 1, 10, False, steps_per_execution=steps) for steps in (1, 32))

    def measured(config, seconds):
        rate = config.batch_size / (seconds + 1e-5 * config.batch_size)
        evidence = Evidence("ran to its end")
        return Trial(config, Measurement(Outcome.OK, evidence, samples_per_second=rate, compute_samples_per_second=rate))

    at = ConfigArrays.of([one, many, larger, larger_many])
    unknown, doubt = surrogate([measured(one, 1e-3), measured(larger, 1e-3)]).predict(at)
    assert unknown[1] - unknown[0] > 0.2
    assert unknown[3] - unknown[2] < 0.1
    assert doubt[1] > 2 * doubt[0]
    known, _ = surrogate([measured(one, 1e-3), measured(larger, 1e-3), measured(many, 1e-4)]).predict(at)
    assert known[1] - known[0] == pytest.approx(math.log(1.08e-3 / 1.8e-4), abs=0.1)


def test_on_a_cpu_the_input_takes_cores_from_the_step_unless_it_only_waits():
    """The readings of a real job on two cores that loads volumes from files: two threads take both cores from the step."""
    read = [(32, 1, 5733, 3896, 2889), (128, 2, 5337, 5049, 3079), (16, 2, 4334, 6258, 2215), (32, 2, 5733, 4939, 2300)]
    evidence, spreads = Evidence("ran to its end"), {"spread": 0.05, "compute_spread": 0.1, "input_spread": 0.1}
    names = "compute_samples_per_second", "input_samples_per_second", "samples_per_second"
    trials = [
        Trial(
            FitConfig(batch, workers, 10, False),
            Measurement(Outcome.OK, evidence, **dict(zip(names, rates, strict=True)), **spreads),
        )
        for batch, workers, *rates in read
    ]
    one_thread = ConfigArrays.of([FitConfig(64, 1, 10, False), FitConfig(128, 1, 10, False)])
    predicted, _ = surrogate(trials, on_cpu=True, cores=2).predict(one_thread)
    assert predicted == pytest.approx(np.log([3000, 3234]), abs=0.1)  # as plain `fit` trained


def test_turns_are_taken_only_where_there_is_no_queue():
    parameters = np.random.default_rng(0).normal(-3, 1, (20, 13))
    configs = ConfigArrays.of([FitConfig(64, 1, 10, False), FitConfig(64, 2, 10, False)])
    plain, (step, inputs, fit) = (log_rates(parameters, configs, takes_turns=takes_turns) for takes_turns in (False, True))
    alone = -np.log(np.exp(-step[:, 0]) + np.exp(-inputs[:, 0]))
    assert fit[:, 0] == pytest.approx(alone)
    assert fit[:, 1] == pytest.approx(plain[2][:, 1])
