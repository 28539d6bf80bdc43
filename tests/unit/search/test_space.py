"""Laws of the search space: equivalent configs, domination, and legal values."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.errors import UsageError
from autofit.records.states import Outcome
from autofit.records.trial import FitConfig
from autofit.search.failures import dominated_by, like_a_hang
from autofit.search.space import SearchSpace, build_space, cost
from autofit.storage import codec
from tests.fakes import KNOBS, arrays

SPACE = build_space(None, KNOBS, cores=4, sample_count=1000)

configs = st.builds(
    FitConfig,
    batch_size=st.integers(1, 4096),
    workers=st.integers(0, 16),
    max_queue_size=st.integers(1, 64),
    use_multiprocessing=st.booleans(),
)


@given(configs)
def test_a_canonical_config_stands_for_itself(config):
    once = SPACE.canonical(config)
    assert SPACE.canonical(once) == once


@given(st.integers(1, 64), st.integers(0, 64), st.booleans())
def test_without_a_queue_all_settings_of_it_are_one_point(queue, other_queue, processes):
    one = FitConfig(32, 1, queue, False)
    assert SPACE.canonical(one) == SPACE.canonical(FitConfig(32, 0, other_queue, processes)) == FitConfig(32, 1, 10, False)


def test_of_settings_whose_workers_are_never_all_busy_the_smallest_is_the_point():
    asked = {"batch_size": [8], "workers": [1, 4, 8, 16], "max_queue_size": [2, 10], "use_multiprocessing": [False]}
    space = build_space(asked, KNOBS, cores=16, sample_count=None)
    assert {(c.workers, c.max_queue_size) for c in space.configs() if c.has_queue} == {(4, 2), (4, 10), (8, 10), (16, 10)}
    sparse = build_space({**asked, "workers": [1, 8], "max_queue_size": [2, 4]}, KNOBS, cores=16, sample_count=None)
    assert {(c.workers, c.max_queue_size) for c in sparse.configs() if c.has_queue} == {(8, 2), (8, 4)}


def test_the_space_lists_each_point_once_and_only_legal_ones():
    points = list(SPACE.configs())
    assert len(points) == len(set(points))
    assert all(point in SPACE and SPACE.canonical(point) == point for point in points)
    assert sum(not point.has_queue for point in points) == len(SPACE.batch_size)


def test_a_call_trains_on_an_epoch_at_most():
    space = SearchSpace(batch_size=(16, 64), steps_per_execution=(1, 8), most_samples_executed=300)
    points = {(point.batch_size, point.steps_per_execution) for point in space.configs()}
    assert points == {(16, 1), (16, 8), (64, 1)}


def test_the_values_are_those_asked_for_and_survive_as_optunas_parameters():
    asked = {"batch_size": [8], "use_multiprocessing": [True, False], "steps_per_execution": [32, 1]}
    space = build_space(asked, asked, cores=2, sample_count=None)
    assert (space.use_multiprocessing, space.steps_per_execution) == ((False, True), (1, 32))
    points = list(space.configs())
    assert len(points) == 4
    for point in points:
        params = {knob: getattr(point, knob) for knob in space.knobs()}
        assert FitConfig.of(params) == point
        for name, distribution in codec.distributions(space.knobs()).items():
            assert distribution._contains(distribution.to_internal_repr(params[name]))


@given(configs, configs)
def test_an_oom_condemns_only_what_costs_at_least_as_much(config, oom):
    for outcome in (Outcome.DEVICE_OOM, Outcome.HOST_OOM):
        if dominated_by(arrays(config), arrays(oom), outcome)[0]:
            assert config.batch_size >= oom.batch_size
        assert dominated_by(arrays(oom), arrays(oom), outcome)[0]
    if dominated_by(arrays(config), arrays(oom), Outcome.HOST_OOM)[0]:
        assert all(a >= b for a, b in zip(cost(config)[1:3], cost(oom)[1:3], strict=True))


def sizes(asked=None, knobs=KNOBS, **changes):
    return build_space(asked, knobs, **{"cores": 4, "sample_count": None, **changes}).batch_size


@pytest.mark.parametrize(
    ("asked", "changes", "expected"),
    [
        ({"batch_size": {"min": 8, "max": 100}}, {}, (8, 12, *range(16, 97, 8), 100)),
        ({"batch_size": [64, 8]}, {}, (8, 64)),
        ({"batch_size": {"min": 8, "max": 64}}, {"effective_batch_size": 96}, (8, 12, 16, 24, 32, 48)),
        ({}, {"effective_batch_size": 24, "replicas": 4}, (4, 8, 12, 24)),
        ({"batch_size": {"min": 3, "max": 12}}, {"replicas": 2}, (4, 6, 8, 12)),
        ({"batch_size": [8, 512]}, {"baseline": {"batch_size": 512}, "sample_count": 2000, "min_updates": 10}, (8, 512)),
        ({"batch_size": [8, 64, 512]}, {"sample_count": 2000, "min_updates": 10}, (8, 64, 512)),
    ],
)
def test_the_batch_sizes_of_a_space(asked, changes, expected):
    assert sizes(asked, **changes) == expected


@pytest.mark.parametrize(
    ("changes", "largest"),
    [
        ({}, 4096),
        ({"on_gpu": True}, 65536),
        ({"on_gpu": True, "sample_count": 9000}, 9000),
        ({"sample_count": 2000, "min_updates": 10}, 200),
        ({"sample_count": 2000, "min_updates": 10, "effective_batch_size": 1024}, 1024),  # which decides on the updates
        ({"sample_count": 200, "min_updates": 10, "baseline": {"batch_size": 64}}, 64),
        ({"sample_count": 200, "min_updates": 10}, 32),  # what Keras takes, if nothing is said
    ],
)
def test_the_largest_batch_size_by_default(changes, largest):
    assert sizes(**changes)[-1] == largest


@given(st.integers(1, 3000), st.integers(1, 40), st.integers(1, 300))
def test_only_the_present_batch_size_may_leave_fewer_updates(samples, updates, present):
    allowed = sizes(sample_count=samples, min_updates=updates, baseline={"batch_size": present})
    assert present in allowed
    enough = [size for size in allowed if size != present and samples // size >= updates]
    if samples >= updates:
        assert set(allowed) == {present, *enough}
    else:  # so little data that no batch size leaves enough
        assert max(allowed) == present


@pytest.mark.parametrize(
    ("asked", "changes", "key", "numbers"),
    [
        ({"batch_size": [8, 9, 15]}, {"replicas": 2}, "space.batch_size", {9, 15, 2}),
        ({"batch_size": {"min": 3, "max": 3}}, {"replicas": 2}, "space.batch_size", {3, 2}),
        ({}, {"effective_batch_size": 15, "replicas": 2}, "space", {2, 100, 15}),
        ({}, {"sample_count": 1, "replicas": 2}, "device", {1, 2}),
        ({"batch_size": {"min": 7, "max": 8}}, {"effective_batch_size": 9}, "space", {7, 8, 9}),
        ({}, {"knobs": ["workers"], "effective_batch_size": 64}, "effective_batch_size", {64}),
        ({"workers": [1]}, {"knobs": ["batch_size"]}, "space", set()),
    ],
)
def test_a_space_without_a_batch_size_or_with_another_knob_is_an_error(asked, changes, key, numbers):
    with pytest.raises(UsageError) as caught:
        sizes(asked, **{"sample_count": 100, **changes})
    assert caught.value.key == key
    assert set(map(int, re.findall(r"\d+", str(caught.value)))) == numbers


def test_the_users_present_values_are_among_the_defaults_but_not_forced_on_what_is_asked():
    space = build_space({"workers": [2, 1]}, KNOBS, cores=2, sample_count=None, baseline={"batch_size": 9, "workers": 7})
    assert 9 in space.batch_size
    assert space.workers == (1, 2)


def test_a_hang_rules_out_as_many_workers_of_its_kind():
    threads, processes, inline = FitConfig(32, 4, 10, False), FitConfig(32, 4, 10, True), FitConfig(32, 1, 10, False)
    smaller = FitConfig(8, 2, 10, False), FitConfig(64, 2, 10, True), FitConfig(8, 1, 10, False)
    alike = {threads: FitConfig(8, 8, 2, False), processes: FitConfig(8, 8, 2, True), inline: FitConfig(64, 1, 10, False)}
    for hung, other in alike.items():
        configs = [threads, processes, inline, *smaller, other]
        assert [c for c in configs if like_a_hang(arrays(c), arrays(hung))[0]] == [hung, other]
