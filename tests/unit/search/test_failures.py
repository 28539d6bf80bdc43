"""What a failure rules out."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autofit.records.knobs import FitConfig
from autofit.records.states import Outcome
from autofit.records.trial import Evidence, Limits, Measurement, Trial
from autofit.search.context import SearchContext
from autofit.search.failures import dominated_by, eligible, like_a_hang, ruled_out
from autofit.search.space import cost
from tests.fakes import DESCRIPTION, arrays

CONTEXT = SearchContext(DESCRIPTION, Limits(None, 2**34), 8, True)
BATCHES = (8, 24, 30, 32, 48, 64, 96, 160)


def at(batch, workers=1, queue=10, steps=1, processes=False):
    return FitConfig(batch, workers, queue, processes, steps_per_execution=steps)


def out(failures, ran, configs):
    error = Measurement(Outcome.ERROR, Evidence("it raised"))
    fine = Measurement(Outcome.OK, Evidence("it ran"))
    trials = [Trial(config, error) for config in failures]
    trials += [Trial(config, fine) for config in ran]
    mask = ruled_out(arrays(*configs), trials, CONTEXT, [at(30)])
    return [config for config, is_out in zip(configs, mask, strict=True) if is_out]


@pytest.mark.parametrize(
    ("failed", "ran", "left"),
    [
        # multiples of 3
        ((32,), (), (24, 30, 48, 96)),
        ((160,), (24, 48), (24, 30, 48, 96)),
        # smaller and larger ones ran
        ((32,), (64,), (8, 24, 30, 48, 64, 96, 160)),
        # too large: no divisor tells them apart
        ((96,), (24, 32), (8, 24, 30, 32, 48, 64)),
        ((32, 160, 64), (), (30,)),  # only one size ever ran
    ],
)
def test_batch_sizes_that_the_code_cannot_take_are_left_out(failed, ran, left):
    sizes = [at(size) for size in BATCHES]
    ruled_out = out(map(at, failed), map(at, ran), sizes)
    assert (
        tuple(config.batch_size for config in sizes if config not in ruled_out) == left
    )


def test_a_config_that_differs_in_several_ways_accuses_none_of_them_before_one_has_run():
    threads = at(30, workers=4, queue=2)
    steps = at(30, steps=8)
    both = at(30, workers=4, queue=2, steps=8)
    everything = [threads, steps, both]
    assert out([both], [], everything) == [both]
    assert out([both], [steps], everything) == [threads, both]
    assert out([both], [threads], everything) == [steps, both]
    several = [at(size, steps=8) for size in BATCHES[:5]]
    assert out(several, [], [at(size) for size in BATCHES]) == []
    # the larger one waits for the other
    alone, larger, failed = (
        at(size, workers=8, queue=4, steps=steps, processes=True)
        for size, steps in ((30, 1), (64, 1), (64, 8))
    )
    assert out([failed], [], [alone, larger]) == [larger]


configs = st.builds(
    FitConfig,
    st.integers(1, 4096),
    st.integers(0, 16),
    st.integers(1, 64),
    st.booleans(),
)


@settings(max_examples=40)
@given(configs, configs)
def test_an_oom_condemns_only_what_costs_at_least_as_much(config, oom):
    for outcome in (Outcome.DEVICE_OOM, Outcome.HOST_OOM):
        if dominated_by(arrays(config), arrays(oom), outcome)[0]:
            assert config.batch_size >= oom.batch_size
        assert dominated_by(arrays(oom), arrays(oom), outcome)[0]
    if dominated_by(arrays(config), arrays(oom), Outcome.HOST_OOM)[0]:
        assert all(
            a >= b for a, b in zip(cost(config)[1:3], cost(oom)[1:3], strict=True)
        )


def test_where_a_call_stacks_its_batches_the_steps_are_blamed_before_the_batch():
    one, eight, many = (at(64, steps=steps) for steps in (1, 8, 128))
    larger = at(96, steps=128)
    ran = Measurement(
        Outcome.OK, Evidence("ran"), samples_per_second=100.0, host_peak_bytes=1
    )
    full = Measurement(Outcome.DEVICE_OOM, Evidence("full"))
    trials = [Trial(one, ran), Trial(many, full)]
    stacking = replace(CONTEXT, description=replace(DESCRIPTION, stacks_steps=True))
    for context, left in ((stacking, [one, eight]), (CONTEXT, [])):
        configs = one, eight, many, larger
        mask = ruled_out(arrays(*configs), trials, context)
        assert [
            c for c, is_out in zip(configs, mask, strict=True) if not is_out
        ] == left
        assert [trial.config for trial in eligible(trials, context)] == left[:1]


def test_a_hang_rules_out_as_many_workers_of_its_kind():
    threads = at(32, workers=4)
    processes = at(32, workers=4, processes=True)
    inline = at(32)
    smaller = [at(8, workers=2), at(64, workers=2, processes=True), at(8)]
    alike = {
        threads: at(8, workers=8, queue=2),
        processes: at(8, workers=8, queue=2, processes=True),
        inline: at(64),
    }
    for hung, other in alike.items():
        among = [threads, processes, inline, *smaller, other]
        assert [c for c in among if like_a_hang(arrays(c), arrays(hung))[0]] == [
            hung,
            other,
        ]
