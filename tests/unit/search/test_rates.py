"""The model of rates: what the law recovers, how sure it is, and the correction by residuals."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from autofit.records.knobs import FitConfig
from autofit.records.states import Outcome
from autofit.records.trial import Evidence, Limits, Measurement, Trial
from autofit.search.context import SearchContext
from autofit.search.rates import Rates
from tests.fakes import DESCRIPTION, arrays

SEEN = [
    FitConfig(8, 1, 10, False),
    FitConfig(64, 4, 4, False),
    FitConfig(256, 2, 10, True),
    FitConfig(128, 8, 20, False),
]
ALL = [
    FitConfig(b, w, q, mp)
    for b, w, q, mp in itertools.product(
        (8, 32, 128, 512, 1024), (1, 2, 4, 8), (2, 10, 20), (False, True)
    )
]


def truth(config):
    """The rates of fit, step and input.

    A step takes 2 ms + 0.1 ms a sample; a sample takes 0.25 ms to make, by up to 5 workers.
    """
    step = config.batch_size / (2e-3 + 1e-4 * config.batch_size)
    made = 4000 * min(config.workers if config.has_queue else 1, 5)
    return min(step, made), step, made


def log_truth(configs):
    return np.log([truth(config)[0] for config in configs])


def ran(config, scale=1.0, spread=0.02):
    fit, step, made = truth(config)
    return of_rates(config, scale * fit, step, made, spread=spread)


def of_rates(config, fit, step=None, made=None, spread=0.02):
    rates = {
        "samples_per_second": fit,
        "compute_samples_per_second": step,
        "input_samples_per_second": made,
    }
    spreads = {"spread": spread, "compute_spread": spread, "input_spread": spread}
    return Trial(
        config, Measurement(Outcome.OK, Evidence("ran to its end"), **spreads, **rates)
    )


def threads(batch, workers, steps=None):
    return FitConfig(batch, workers, 10, False, steps_per_execution=steps)


def predicted(trials, *configs, on_cpu=False, cores=8, takes_turns=False):
    description = replace(DESCRIPTION, sample_bytes=1000, takes_turns=takes_turns)
    context = SearchContext(description, Limits(None, 2**40), cores, on_cpu)
    return Rates(trials, context).predict(arrays(*configs))


def test_four_trials_predict_the_rest():
    errors = np.abs(predicted([*map(ran, SEEN)], *ALL).mean - log_truth(ALL))
    assert np.median(errors) < 0.05
    assert np.percentile(errors, 90) < 0.25


def test_one_trial_is_enough_to_begin_and_the_model_is_surer_near_it_than_far_from_it():
    near, far = predicted(
        [ran(SEEN[0])], SEEN[0], FitConfig(1024, 8, 20, True)
    ).deviation
    assert near < 0.05
    assert far > 0.5
    without_ceilings = predicted([of_rates(SEEN[0], truth(SEEN[0])[0])], *ALL)
    assert np.isfinite([without_ceilings.mean, without_ceilings.deviation]).all()


def test_what_the_forms_leave_over_is_corrected_where_it_was_seen_and_near_it():
    dip = threads(128, 4)
    others = [*map(ran, SEEN), ran(threads(512, 4))]
    at = (dip, FitConfig(128, 4, 20, False), threads(8, 1))
    before = predicted(others, *at).mean
    measured, near, far = predicted([*others, ran(dip, scale=0.8)], *at).mean - before
    assert measured < -0.09
    assert near == pytest.approx(measured, abs=0.02)
    assert abs(far) < 0.05


def test_a_rate_is_not_expected_to_pass_its_ceilings():
    trials = [ran(threads(batch, 1)) for batch in (8, 64, 512)]
    mean = predicted(trials, *(threads(512, workers) for workers in (2, 4, 8))).mean
    _, step, _ = truth(threads(512, 8))
    assert (mean < math.log(step) + 0.03).all()


def test_where_step_and_input_take_turns_a_queue_is_known_to_help_after_one_trial():
    one = threads(64, 1)
    two = threads(64, 2)
    trials = [of_rates(one, 1500.0, 3000.0, 3000.0)]
    means = [
        predicted(trials, one, two, on_cpu=True, cores=2, takes_turns=turns).mean
        for turns in (False, True)
    ]
    never, always = (math.exp(queued - alone) for alone, queued in means)
    assert always > max(1.3, never)


def test_more_steps_in_a_call_are_expected_to_help_small_batches_and_the_gain_is_learned():
    one, many, larger, _ = at = [
        threads(batch, 1, steps) for batch in (8, 1024) for steps in (1, 32)
    ]

    def measured(config, seconds):
        rate = config.batch_size / (seconds + 1e-5 * config.batch_size)
        return of_rates(config, rate, rate)

    trials = [measured(one, 1e-3), measured(larger, 1e-3)]
    unknown, doubt, *_ = predicted(trials, *at)
    assert unknown[1] - unknown[0] > 0.2
    assert unknown[3] - unknown[2] < 0.1
    assert doubt[1] > 2 * doubt[0]
    known = predicted([*trials, measured(many, 1e-4)], *at).mean
    assert known[1] - known[0] == pytest.approx(math.log(1.08e-3 / 1.8e-4), abs=0.1)


def test_on_a_cpu_the_input_takes_cores_from_the_step_unless_it_only_waits():
    """The readings of a real job on two cores that loads volumes from files.

    Two threads take both cores from the step.
    """
    read = [
        (32, 1, 2889, 5733, 3896),
        (128, 2, 3079, 5337, 5049),
        (16, 2, 2215, 4334, 6258),
        (32, 2, 2300, 5733, 4939),
    ]
    trials = [
        of_rates(threads(batch, workers), *rates, spread=0.05)
        for batch, workers, *rates in read
    ]
    mean = predicted(trials, threads(64, 1), threads(128, 1), on_cpu=True, cores=2).mean
    # as plain `fit` trained
    assert mean == pytest.approx(np.log([3000, 3234]), abs=0.1)


@pytest.mark.parametrize(
    "read",
    [
        {
            8: 7.9,
            16: 12.7,
            64: 16.1,
            112: 12.8,
        },  # DeepSpeech2, which declines beyond 64
        {4: 14.8, 8: 24.0, 12: 21.5, 16: 27.6},  # YOLOv3, which is slow at 12
    ],
)
def test_what_the_law_lacks_is_not_read_as_noise_between_runs(read):
    """The readings of two real GPUs."""
    configs = [threads(batch, 1) for batch in read]
    trials = [
        of_rates(config, rate, rate, 100.0, spread=0.06)
        for config, rate in zip(configs, read.values(), strict=True)
    ]
    mean = predicted(trials, *configs).mean
    assert mean == pytest.approx(np.log([*read.values()]), abs=0.04)


def test_stated_deviations_are_those_of_the_errors():
    """Each error counts once: at what ran, the model is no less sure than the reading.

    And it errs as it says.
    """
    draw = np.random.default_rng(0)
    squares = []
    # of the reading, and between runs
    deviation = math.hypot(0.03, 0.03)
    for _ in range(12):
        scales = [math.exp(deviation * draw.standard_normal()) for _ in SEEN]
        pairs = zip(SEEN, scales, strict=True)
        rates = predicted(
            [ran(c, scale=scale, spread=0.06) for c, scale in pairs], *SEEN
        )
        assert (rates.deviation <= deviation).all()
        squares += list(np.square((rates.mean - log_truth(SEEN)) / rates.deviation))
    assert 0.6 < math.sqrt(np.mean(squares)) < 1.4


def test_what_is_uncertain_for_both_is_certain_for_their_difference():
    at = [threads(batch, 1) for batch in (1024, 896, 8)]
    rates = predicted([ran(at[-1], spread=0.1)], *at)
    lead, deviation = rates.lead_over(0)
    assert lead == pytest.approx(rates.mean - rates.mean[0])
    assert deviation[0] == pytest.approx(0.0, abs=1e-6)
    assert deviation[1] < 0.2 * min(rates.deviation[:2])
    assert deviation[2] > 5 * deviation[1]


@pytest.mark.parametrize("kind", ["compute", "input"])
def test_a_rate_that_a_trial_took_over_is_no_further_reading(kind):
    at = [threads(64, workers) for workers in (1, 2, 4)]
    one, two, _ = (ran(config, spread=0.15) for config in at)
    name = f"{kind}_samples_per_second"
    taken_over = {name: getattr(one.measurement, name), f"{kind}_is_read": False}
    rates = []
    for changes in ({name: None}, taken_over):
        other = replace(two, measurement=replace(two.measurement, **changes))
        rates.append(predicted([one, other], *at))
    assert (rates[0].mean == rates[1].mean).all()
    assert (rates[0].deviation == rates[1].deviation).all()


def of_epochs(config, samples=3000):
    """A trial of epochs of so many samples.

    Before each of them 0.05 s pass, and 0.1 s for each worker process.
    """
    trial = ran(config)
    gap = 0.05 + 0.1 * config.workers * config.use_multiprocessing
    rate = samples / (samples / trial.samples_per_second + gap)
    read = {
        "samples_per_second": rate,
        "steady_samples_per_second": trial.samples_per_second,
    }
    return Trial(
        config,
        replace(
            trial.measurement, epoch_samples=samples, epoch_gap_seconds=gap, **read
        ),
    )


def test_processes_that_start_in_each_short_epoch_are_expected_to_be_slow_where_one_trial_read_it():
    at = (threads(256, 4), FitConfig(256, 8, 10, True))
    seen = [*SEEN, FitConfig(64, 2, 10, True)]
    steady, mean = (
        predicted([*map(read, seen)], *at).mean for read in (ran, of_epochs)
    )
    assert abs(steady[0] - steady[1]) < 0.2
    assert mean[0] - mean[1] > 0.4
    assert mean == pytest.approx(
        [math.log(of_epochs(c).samples_per_second) for c in at], abs=0.15
    )


# by batch size, threads and steps in a call; what trials on two cores read of fit, step alone and
# input alone, in samples/s
ARRAYS = {
    (32, None, 1): (34514, 39848, 56720),
    (32, None, 8): (96799, 113273, 182894),
    (160, None, 32): (355205, 566082, 786318),
    (256, None, 8): (379157, 578575, 676378),
    (32, None, 32): (131290, 149833, 309533),
    (256, None, 32): (370159, 715871, 865846),
}
PATCHES = {
    (32, 1, 1): (21180, 37662, 26639),
    (32, 2, 32): (47955, 164940, 65064),
    (160, 2, 32): (180012, 526599, 322654),
    (32, 1, 32): (72491, None, 77052),
    (384, 2, 32): (231437, 722596, 535930),
}


@pytest.mark.parametrize("read", [ARRAYS, PATCHES], ids=["arrays", "a PyDataset"])
def test_an_input_that_depends_on_the_steps_of_a_call_is_predicted(read):
    configs = [
        threads(batch, workers, steps)
        if workers
        else FitConfig(batch, steps_per_execution=steps)
        for batch, workers, steps in read
    ]
    trials = [
        of_rates(c, *rates) for c, rates in zip(configs, read.values(), strict=True)
    ]
    fit = [rates[0] for rates in read.values()]
    errors = predicted(trials, *configs, on_cpu=True, cores=2).mean - np.log(fit)
    assert math.sqrt(np.mean(np.square(errors))) < 0.15


@pytest.mark.parametrize("stacks_steps", [True, False])
def test_several_steps_in_a_call_may_cost_more_than_they_save_where_it_stacks_their_batches(
    stacks_steps,
):
    """Large samples, which stacking copies: 22,000 samples a second without, 9,000 with it."""
    read = [
        of_rates(threads(32, 1, 1), 20_700.0, 30_000.0, 40_000.0),
        of_rates(threads(32, 1, 1), 24_200.0, 31_000.0, 42_000.0),
        of_rates(threads(32, 1, 32), 9_000.0, 12_000.0, 14_000.0),
        of_rates(threads(128, 1, 8), 8_800.0, 11_000.0, 13_000.0),
    ]
    description = replace(DESCRIPTION, sample_bytes=2**15, stacks_steps=stacks_steps)
    rates = Rates(read, SearchContext(description, Limits(None, 2**40), 2, True))
    lead, _ = rates.predict(arrays(threads(32, 1, 1), threads(128, 1, 8))).lead_over(0)
    # elsewhere the law has only noise to explain them by
    assert bool(lead[1] < -0.5) is stacks_steps


def test_an_input_that_the_law_does_not_fit_says_nothing_about_the_rate_of_fit():
    """Large samples on JAX beside other work: fit, step and input alone, as they were read."""
    read = {
        8: [(11_900.0, 14_800.0, 25_400.0)],
        32: [(25_900.0, 28_700.0, 89_200.0), (29_700.0, None, None)],
        192: [(23_800.0, None, 221_800.0)],
        896: [(22_900.0, 24_000.0, 100_000.0)],
        1792: [(18_400.0, 18_900.0, 40_200.0), (19_500.0, None, None)],
        1920: [(18_900.0, 22_200.0, 42_100.0)],
    }
    trials = [
        of_rates(threads(batch, 1, 1), *rates, spread=0.15)
        for batch, readings in read.items()
        for rates in readings
    ]
    sizes = [32, 192, 896, 1792]
    description = replace(DESCRIPTION, sample_bytes=2**15, takes_turns=True)
    rates = Rates(trials, SearchContext(description, Limits(None, 2**40), 2, True))
    mean = np.exp(rates.predict(arrays(*(threads(size, 1, 1) for size in sizes))).mean)
    assert mean == pytest.approx([27_000, 23_800, 22_900, 19_000], rel=0.15)
