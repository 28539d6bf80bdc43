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


def test_no_workers_are_not_made_a_process():
    asked = {"batch_size": [8], "workers": [0, 1], "max_queue_size": [4], "use_multiprocessing": [True]}
    space = build_space(asked, KNOBS, cores=2, sample_count=None)
    assert set(space.configs()) == {FitConfig(8, 0, 4, True), FitConfig(8, 1, 4, True)}


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


@given(configs, configs)
def test_only_an_oom_condemns(config, other):
    assert not dominated_by(arrays(config), arrays(other), Outcome.OK)[0]
    assert not dominated_by(arrays(config), arrays(other), Outcome.TIMEOUT)[0]
    assert not dominated_by(arrays(config), arrays(other), Outcome.CRASHED)[0]


def test_default_batch_sizes_stay_within_the_data():
    assert SPACE.batch_size[0] == 1
    assert SPACE.batch_size[-1] == 1000
    assert {32, 48, 64, 96, 128} <= set(SPACE.batch_size)


def test_a_mapping_is_a_range_and_a_list_a_choice():
    space = build_space({"batch_size": {"min": 8, "max": 100}, "workers": [3, 1]}, KNOBS, cores=2, sample_count=None)
    assert space.batch_size == (8, 12, *range(16, 97, 8), 100)
    assert space.workers == (1, 3)


def test_the_users_present_values_are_among_the_defaults_but_not_forced_on_what_is_asked():
    space = build_space({"workers": [1, 2]}, KNOBS, cores=2, sample_count=None, baseline={"batch_size": 9, "workers": 7})
    assert 9 in space.batch_size
    assert space.workers == (1, 2)


def test_a_knob_that_is_not_taken_is_none():
    space = build_space(None, ("batch_size",), cores=2, sample_count=64)
    assert space.workers is None
    assert space.canonical(FitConfig(30)) == FitConfig(30)


@pytest.mark.parametrize(
    ("asked", "knobs", "key", "named"),
    [
        ({"workers": [1]}, ("batch_size",), "space", "workers"),
        ({"batch_size": [0]}, KNOBS, "space.batch_size", "[0]"),
        ({"max_queue_size": [0]}, KNOBS, "space.max_queue_size", "[0]"),
        (None, (), None, "batch_size"),
    ],
)
def test_an_illegal_space_is_an_error(asked, knobs, key, named):
    with pytest.raises(UsageError) as caught:
        build_space(asked, knobs, cores=2, sample_count=100)
    assert caught.value.key == key
    assert named in str(caught.value)


def test_a_single_value_space_has_one_config():
    space = SearchSpace(batch_size=(8,), workers=(2,), max_queue_size=(4,), use_multiprocessing=(False,))
    assert list(space.configs()) == [FitConfig(8, 2, 4, False)]


def test_the_effective_batch_bounds_what_is_tried():
    def sizes(asked=None, **bounds):
        return build_space(asked, ["batch_size"], cores=2, sample_count=5000, **bounds).batch_size

    assert sizes({"batch_size": {"min": 8, "max": 64}}, effective_batch_size=96) == (8, 12, 16, 24, 32, 48)


@pytest.mark.parametrize(
    ("asked", "knobs", "bounds", "message"),
    [
        (
            {"batch_size": {"min": 7, "max": 8}},
            ["batch_size"],
            {"effective_batch_size": 9},
            "^space: .* 9$",
        ),
        ({}, ["workers"], {"effective_batch_size": 64}, "^effective_batch_size: 64 "),
    ],
)
def test_bounds_that_leave_no_batch_size_are_an_error(asked, knobs, bounds, message):
    with pytest.raises(UsageError, match=message):
        build_space(asked, knobs, cores=2, sample_count=1000, **bounds)


def test_a_hang_rules_out_as_many_workers_of_its_kind():
    threads, processes, inline = FitConfig(32, 4, 10, False), FitConfig(32, 4, 10, True), FitConfig(32, 1, 10, False)
    ruled_out = {
        threads: [threads, FitConfig(8, 8, 2, False)],
        processes: [processes, FitConfig(8, 8, 2, True)],
        inline: [inline, FitConfig(64, 1, 10, False)],
    }
    others = [
        threads,
        processes,
        inline,
        FitConfig(8, 2, 10, False),
        FitConfig(64, 2, 10, True),
        FitConfig(8, 1, 10, False),
    ]
    for hung, alike in ruled_out.items():
        assert like_a_hang(arrays(*alike), arrays(hung)).all()
        assert not like_a_hang(arrays(*(c for c in others if c not in alike)), arrays(hung)).any()


@pytest.mark.parametrize(
    ("on_gpu", "sample_count", "largest"), [(False, None, 4096), (True, None, 65536), (True, 9000, 9000)]
)
def test_a_gpu_has_larger_batches_by_default(on_gpu, sample_count, largest):
    space = build_space(None, ["batch_size"], cores=2, sample_count=sample_count, on_gpu=on_gpu)
    assert space.batch_size[-1] == largest


@given(st.integers(1, 8), st.integers(1, 3000), st.integers(1, 300))
def test_devices_share_every_batch_evenly(replicas, count, present):
    try:
        space = build_space(
            None,
            KNOBS,
            cores=4,
            sample_count=count,
            baseline={"batch_size": present * replicas},
            min_updates=10,
            replicas=replicas,
        )
    except UsageError:
        assert count < replicas
        return
    assert all(batch % replicas == 0 for batch in space.batch_size)
    assert max(space.batch_size) <= max(3000, present * replicas)


def test_on_several_devices_the_sizes_on_each_are_those_of_one():
    alone, shared = (build_space(None, KNOBS, cores=4, sample_count=None, replicas=n).batch_size for n in (1, 4))
    assert shared == tuple(4 * batch for batch in alone)


@pytest.mark.parametrize(
    ("asked", "more", "key", "numbers"),
    [
        ({"batch_size": [8, 9, 15]}, {}, "space.batch_size", {9, 15, 2}),
        ({"batch_size": {"min": 3, "max": 3}}, {}, "space.batch_size", {3, 2}),
        ({}, {"effective_batch_size": 15}, "space", {2, 100, 15}),
        ({}, {"sample_count": 1}, "device", {1, 2}),
    ],
)
def test_batches_that_devices_cannot_share_are_refused(asked, more, key, numbers):
    with pytest.raises(UsageError) as caught:
        build_space(asked, KNOBS, cores=4, **{"sample_count": 100, **more}, replicas=2)
    assert caught.value.key == key
    assert set(map(int, re.findall(r"\d+", str(caught.value)))) == numbers


def test_a_range_and_an_effective_batch_give_multiples_alone():
    assert (
        build_space({"batch_size": {"min": 3, "max": 33}}, KNOBS, cores=4, sample_count=None, replicas=2).batch_size[0] == 4
    )
    space = build_space({}, KNOBS, cores=4, sample_count=None, effective_batch_size=24, replicas=4)
    assert space.batch_size == (4, 8, 12, 24)
