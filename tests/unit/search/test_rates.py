"""The model of rates: what the law recovers, how sure it is, and the correction by residuals."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from autofit.records.states import Outcome
from autofit.records.trial import Evidence, FitConfig, Limits, Measurement, Trial
from autofit.search.context import SearchContext
from autofit.search.rates import Rates
from tests.fakes import DESCRIPTION, arrays

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
    return of_rates(config, scale * fit, *((step, made) if ceilings else ()), spread=spread)


def of_rates(config, fit, step=None, made=None, spread=0.02):
    rates = {"samples_per_second": fit, "compute_samples_per_second": step, "input_samples_per_second": made}
    spreads = {"spread": spread, "compute_spread": spread, "input_spread": spread}
    return Trial(config, Measurement(Outcome.OK, Evidence("ran to its end"), **spreads, **rates))


def model(trials, on_cpu=False, cores=8, takes_turns=False):
    description = replace(DESCRIPTION, sample_bytes=1000, takes_turns=takes_turns)
    return Rates(trials, SearchContext(description, Limits(None, 2**40), cores, on_cpu))


def test_four_trials_predict_the_rest():
    predicted = model([ran(c) for c in SEEN]).predict(arrays(*ALL))
    errors = np.abs(predicted[0] - np.log([truth(c)[0] for c in ALL]))
    assert np.median(errors) < 0.05
    assert np.percentile(errors, 90) < 0.25


def test_it_is_surer_near_what_has_run_than_far_from_it():
    one = model([ran(SEEN[0])])
    near, far = one.predict(arrays(SEEN[0], FitConfig(1024, 8, 20, True)))[1]
    assert near < 0.05
    assert far > 0.5


def test_more_threads_are_expected_to_bring_something_where_a_second_one_brought_less_than_all():
    """As reading from a disk: one thread 2,400 samples/s, two 3,500."""
    seen = {FitConfig(64, 1, 10, False): 2400.0, FitConfig(64, 2, 10, False): 3500.0}
    trials = [of_rates(config, made, 5e4, made) for config, made in seen.items()]
    _, two, four = model(trials).predict(arrays(*seen, FitConfig(64, 4, 10, False))).mean
    assert four > two + 0.05


def test_what_the_forms_leave_over_is_corrected_where_it_was_seen_and_near_it():
    dip = FitConfig(128, 4, 10, False)
    others = [ran(c) for c in (*SEEN, FitConfig(512, 4, 10, False))]
    without, seen = model(others), model([*others, ran(dip, scale=0.8)])
    at = arrays(dip, FitConfig(128, 4, 20, False), FitConfig(8, 1, 10, False))
    measured, near, far = seen.predict(at)[0] - without.predict(at)[0]
    assert measured < -0.09
    assert near == pytest.approx(measured, abs=0.02)
    assert abs(far) < 0.05


def test_a_rate_is_not_expected_to_pass_its_ceilings():
    trials = [ran(FitConfig(b, 1, 10, False)) for b in (8, 64, 512)]
    compute_bound = model(trials).predict(arrays(*(FitConfig(512, w, 10, False) for w in (2, 4, 8))))
    best = math.log(truth(FitConfig(512, 8, 10, False))[1])
    assert (compute_bound[0] < best + 0.03).all()


def test_one_trial_without_anything_else_is_enough_to_begin():
    predicted = model([ran(SEEN[0], ceilings=False)]).predict(arrays(*ALL))
    assert np.isfinite(predicted[0]).all()
    assert np.isfinite(predicted[1]).all()


def test_where_step_and_input_take_turns_a_queue_is_known_to_help_after_one_trial():
    config = FitConfig(64, 1, 10, False)
    configs, trials = arrays(config, FitConfig(64, 2, 10, False)), [of_rates(config, 1500.0, 3000.0, 3000.0)]
    means = [model(trials, on_cpu=True, cores=2, takes_turns=turns).predict(configs).mean for turns in (False, True)]
    never, always = (math.exp(queued - alone) for alone, queued in means)
    assert always > max(1.3, never)


def test_more_steps_in_a_call_are_expected_to_help_small_batches_and_the_gain_is_learned():
    one, many = (FitConfig(8, 1, 10, False, steps_per_execution=steps) for steps in (1, 32))
    larger, larger_many = (FitConfig(1024, 1, 10, False, steps_per_execution=steps) for steps in (1, 32))

    def measured(config, seconds):
        rate = config.batch_size / (seconds + 1e-5 * config.batch_size)
        return of_rates(config, rate, rate)

    at = arrays(one, many, larger, larger_many)
    unknown, doubt, *_ = model([measured(one, 1e-3), measured(larger, 1e-3)]).predict(at)
    assert unknown[1] - unknown[0] > 0.2
    assert unknown[3] - unknown[2] < 0.1
    assert doubt[1] > 2 * doubt[0]
    known = model([measured(one, 1e-3), measured(larger, 1e-3), measured(many, 1e-4)]).predict(at).mean
    assert known[1] - known[0] == pytest.approx(math.log(1.08e-3 / 1.8e-4), abs=0.1)


def test_on_a_cpu_the_input_takes_cores_from_the_step_unless_it_only_waits():
    """The readings of a real job on two cores that loads volumes from files: two threads take both cores from the step."""
    read = [(32, 1, 2889, 5733, 3896), (128, 2, 3079, 5337, 5049), (16, 2, 2215, 4334, 6258), (32, 2, 2300, 5733, 4939)]
    trials = [of_rates(FitConfig(batch, workers, 10, False), *rates, spread=0.05) for batch, workers, *rates in read]
    one_thread = arrays(FitConfig(64, 1, 10, False), FitConfig(128, 1, 10, False))
    predicted = model(trials, on_cpu=True, cores=2).predict(one_thread).mean
    assert predicted == pytest.approx(np.log([3000, 3234]), abs=0.1)  # as plain `fit` trained


def test_stated_deviations_are_those_of_the_errors():
    """Each error counts once: at what ran, the model is no less sure than the reading, and it errs as it says."""
    draw, squares = np.random.default_rng(0), []
    for _ in range(20):
        deviation = math.hypot(0.03, 0.03)  # of the reading, and between runs
        trials = [ran(c, scale=math.exp(deviation * draw.standard_normal()), spread=0.06) for c in SEEN]
        predicted = model(trials).predict(arrays(*SEEN))
        assert (predicted.deviation <= deviation).all()
        squares += list(np.square((predicted.mean - np.log([truth(c)[0] for c in SEEN])) / predicted.deviation))
    assert 0.6 < math.sqrt(np.mean(squares)) < 1.4


def test_what_is_uncertain_for_both_is_certain_for_their_difference():
    small = ran(FitConfig(8, 1, 10, False), spread=0.1)
    predicted = model([small]).predict(arrays(FitConfig(1024, 1, 10, False), FitConfig(896, 1, 10, False), small.config))
    lead, deviation = predicted.lead_over(0)
    assert lead == pytest.approx(predicted.mean - predicted.mean[0])
    assert deviation[0] == pytest.approx(0.0, abs=1e-6)
    assert deviation[1] < 0.2 * min(predicted.deviation[:2])
    assert deviation[2] > 5 * deviation[1]


@pytest.mark.parametrize("kind", ["compute", "input"])
def test_a_rate_that_a_trial_took_over_is_no_further_reading(kind):
    one, two = (ran(FitConfig(64, workers, 10, False), spread=0.15) for workers in (1, 2))
    name = f"{kind}_samples_per_second"
    copied = {name: getattr(one.measurement, name), f"{kind}_is_read": False}
    at = arrays(one.config, two.config, FitConfig(64, 4, 10, False))
    expected, predicted = (
        model([one, Trial(two.config, replace(two.measurement, **changed))]).predict(at)
        for changed in ({name: None}, copied)
    )
    assert (predicted.mean == expected.mean).all()
    assert (predicted.deviation == expected.deviation).all()


def of_epochs(config, samples=3000):
    """A trial of epochs of so many samples, before each of which 0.05 s pass, and 0.1 s for each worker process."""
    trial, gap = ran(config), 0.05 + 0.1 * config.workers * config.use_multiprocessing
    rate = samples / (samples / trial.samples_per_second + gap)
    read = {"samples_per_second": rate, "steady_samples_per_second": trial.samples_per_second}
    return Trial(config, replace(trial.measurement, epoch_samples=samples, epoch_gap_seconds=gap, **read))


def test_processes_that_start_in_each_short_epoch_are_expected_to_be_slow_where_one_trial_read_it():
    threads, processes = FitConfig(256, 4, 10, False), FitConfig(256, 8, 10, True)
    at = arrays(threads, processes)
    seen = [*SEEN, FitConfig(64, 2, 10, True)]
    steady = model([ran(c) for c in seen]).predict(at).mean
    mean = model([of_epochs(c) for c in seen]).predict(at).mean
    assert abs(steady[0] - steady[1]) < 0.2
    assert mean[0] - mean[1] > 0.4
    assert mean == pytest.approx([math.log(of_epochs(c).samples_per_second) for c in (threads, processes)], abs=0.15)
