"""What an error of the user's code rules out."""

import pytest

from autofit.records.states import Outcome
from autofit.records.trial import Evidence, FitConfig, Measurement, Trial
from autofit.search.context import ConfigArrays
from autofit.search.failures import ruled_out

BATCHES = (8, 24, 30, 32, 48, 64, 96, 160)
BASELINE = FitConfig(30, 1, 10, False, steps_per_execution=1)


def out(failures, ran, configs):
    outcomes = [*((config, Outcome.ERROR) for config in failures), *((config, Outcome.OK) for config in ran)]
    trials = [Trial(config, Measurement(outcome, Evidence("it ran, or not"))) for config, outcome in outcomes]
    mask = ruled_out(ConfigArrays(configs, 2), trials, 2, [BASELINE])
    return [config for config, is_out in zip(configs, mask, strict=True) if is_out]


@pytest.mark.parametrize(
    ("failed", "ran", "left"),
    [
        ((32,), (), (24, 30, 48, 96)),  # multiples of 3
        ((32,), (64,), (8, 24, 30, 48, 64, 96, 160)),  # smaller and larger ones ran
        ((160,), (24, 48), (24, 30, 48, 96)),
        ((96,), (24, 32), (8, 24, 30, 32, 48, 64)),  # too large: no divisor tells them apart
        ((32, 160, 64), (), (30,)),  # only one size ever ran
    ],
)
def test_batch_sizes_that_the_code_cannot_take_are_left_out(failed, ran, left):
    sizes = [FitConfig(size, 1, 10, False, steps_per_execution=1) for size in BATCHES]
    failures, finished = ([config for config in sizes if config.batch_size in some] for some in (failed, ran))
    assert tuple(config.batch_size for config in sizes if config not in out(failures, finished, sizes)) == left


def test_a_config_that_differs_in_several_ways_accuses_none_of_them_before_one_has_run():
    threads, steps, both = (
        FitConfig(30, *workers, False, steps_per_execution=number)
        for workers, number in (((4, 2), 1), ((1, 10), 8), ((4, 2), 8))
    )
    assert out([both], [], [threads, steps, both]) == [both]
    assert out([both], [steps], [threads, steps, both]) == [threads, both]
    assert out([both], [threads], [threads, steps, both]) == [steps, both]


def test_sizes_that_failed_with_several_steps_in_a_call_accuse_no_size_with_one():
    one, several = ([FitConfig(size, 1, 10, False, steps_per_execution=steps) for size in BATCHES] for steps in (1, 8))
    assert out(several[:5], [], one) == []
