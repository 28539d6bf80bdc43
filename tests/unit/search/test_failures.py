"""What a failure rules out."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autofit.records.states import Outcome
from autofit.records.trial import Evidence, FitConfig, Limits, Measurement, Trial
from autofit.search.context import SearchContext
from autofit.search.failures import dominated_by, eligible, like_a_hang, ruled_out
from autofit.search.space import cost
from tests.fakes import DESCRIPTION, arrays

CONTEXT = SearchContext(DESCRIPTION, Limits(None, 2**34), 8, True)
BATCHES = (8, 24, 30, 32, 48, 64, 96, 160)
BASELINE = FitConfig(30, 1, 10, False, steps_per_execution=1)


def out(failures, ran, configs):
    outcomes = [
        *((config, Outcome.ERROR) for config in failures),
        *((config, Outcome.OK) for config in ran),
    ]
    trials = [
        Trial(config, Measurement(outcome, Evidence("it ran, or not")))
        for config, outcome in outcomes
    ]
    mask = ruled_out(arrays(*configs), trials, CONTEXT, [BASELINE])
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
    failures, finished = (
        [config for config in sizes if config.batch_size in some] for some in (failed, ran)
    )
    assert (
        tuple(config.batch_size for config in sizes if config not in out(failures, finished, sizes))
        == left
    )


def test_a_config_that_differs_in_several_ways_accuses_none_of_them_before_one_has_run():
    threads, steps, both = (
        FitConfig(30, *workers, False, steps_per_execution=number)
        for workers, number in (((4, 2), 1), ((1, 10), 8), ((4, 2), 8))
    )
    assert out([both], [], [threads, steps, both]) == [both]
    assert out([both], [steps], [threads, steps, both]) == [threads, both]
    assert out([both], [threads], [threads, steps, both]) == [steps, both]
    one, several = (
        [FitConfig(size, 1, 10, False, steps_per_execution=number) for size in BATCHES]
        for number in (1, 8)
    )
    assert out(several[:5], [], one) == []
    alone, larger = (FitConfig(size, 8, 4, True, steps_per_execution=1) for size in (30, 64))
    assert out([FitConfig(64, 8, 4, True, steps_per_execution=8)], [], [alone, larger]) == [
        larger
    ]  # which waits for it


configs = st.builds(
    FitConfig, st.integers(1, 4096), st.integers(0, 16), st.integers(1, 64), st.booleans()
)


@settings(max_examples=40)
@given(configs, configs)
def test_an_oom_condemns_only_what_costs_at_least_as_much(config, oom):
    for outcome in (Outcome.DEVICE_OOM, Outcome.HOST_OOM):
        if dominated_by(arrays(config), arrays(oom), outcome)[0]:
            assert config.batch_size >= oom.batch_size
        assert dominated_by(arrays(oom), arrays(oom), outcome)[0]
    if dominated_by(arrays(config), arrays(oom), Outcome.HOST_OOM)[0]:
        assert all(a >= b for a, b in zip(cost(config)[1:3], cost(oom)[1:3], strict=True))


def test_where_a_call_stacks_its_batches_the_steps_are_blamed_before_the_batch():
    one, eight, many = (
        FitConfig(64, 1, 10, False, steps_per_execution=steps) for steps in (1, 8, 128)
    )
    larger, finished = replace(many, batch_size=96), Evidence("it ran, or not")
    ran = Measurement(Outcome.OK, finished, samples_per_second=100.0, host_peak_bytes=1)
    trials = [Trial(one, ran), Trial(many, Measurement(Outcome.DEVICE_OOM, finished))]
    stacking = replace(CONTEXT, description=replace(DESCRIPTION, stacks_steps=True))
    for context, left in ((stacking, [one, eight]), (CONTEXT, [])):
        configs = one, eight, many, larger
        mask = ruled_out(arrays(*configs), trials, context)
        assert [c for c, is_out in zip(configs, mask, strict=True) if not is_out] == left
        assert [trial.config for trial in eligible(trials, context)] == left[:1]


def test_a_hang_rules_out_as_many_workers_of_its_kind():
    threads, processes, inline = (
        FitConfig(32, 4, 10, False),
        FitConfig(32, 4, 10, True),
        FitConfig(32, 1, 10, False),
    )
    smaller = FitConfig(8, 2, 10, False), FitConfig(64, 2, 10, True), FitConfig(8, 1, 10, False)
    alike = {
        threads: FitConfig(8, 8, 2, False),
        processes: FitConfig(8, 8, 2, True),
        inline: FitConfig(64, 1, 10, False),
    }
    for hung, other in alike.items():
        among = [threads, processes, inline, *smaller, other]
        assert [c for c in among if like_a_hang(arrays(c), arrays(hung))[0]] == [hung, other]
