"""Laws of the search space: equivalent configs, legal values, and distances."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from autofit.errors import UsageError
from autofit.records.knobs import FitConfig
from autofit.search.space import Space, build_space, nearest
from tests.fakes import KNOBS

SPACE = build_space(None, KNOBS, cores=4, sample_count=1000)


@given(st.integers(1, 4096), st.integers(0, 16), st.integers(1, 64), st.booleans())
def test_a_canonical_config_stands_for_itself_and_without_a_queue_for_all_settings_of_it(
    batch, workers, queue, processes
):
    config = FitConfig(batch, workers, queue, processes)
    once = SPACE.canonical(config)
    assert SPACE.canonical(once) == once
    assert once == (config if config.has_queue else FitConfig(batch, 1, 10, False))


def test_the_space_lists_each_point_once_and_only_legal_ones():
    points = list(SPACE.configs())
    assert len(points) == len(set(points))
    assert all(point in SPACE and SPACE.canonical(point) == point for point in points)
    assert sum(not point.has_queue for point in points) == len(SPACE.batch_size)


def test_of_settings_whose_workers_are_never_all_busy_the_smallest_is_the_point():
    asked = {
        "batch_size": [8],
        "workers": [1, 4, 8, 16],
        "max_queue_size": [2, 10],
        "use_multiprocessing": [False],
    }
    points = build_space(asked, KNOBS, cores=16).configs()
    assert {(c.workers, c.max_queue_size) for c in points if c.has_queue} == {
        (4, 2),
        (4, 10),
        (8, 10),
        (16, 10),
    }


def test_the_users_present_values_are_among_the_defaults_but_not_forced_on_what_is_asked():
    asked = {"workers": [2, 1], "max_queue_size": {"min": 3, "max": 9}}
    space = build_space(asked, KNOBS, cores=2, baseline={"batch_size": 9, "workers": 7})
    assert 9 in space.batch_size
    assert (space.workers, space.max_queue_size) == ((1, 2), (3, 4, 8, 9))


@pytest.mark.parametrize(("on_gpu", "most"), [(True, 128), (False, 32)])
def test_more_steps_in_a_call_are_tried_where_one_program_takes_them_on_a_gpu(
    on_gpu, most
):
    present = {"steps_per_execution": 4}
    space = build_space(
        None,
        ["steps_per_execution"],
        cores=2,
        baseline=present,
        stacks_steps=True,
        on_gpu=on_gpu,
    )
    assert (space.steps_per_execution[1], space.steps_per_execution[-1]) == (4, most)


def sizes(asked=None, knobs=KNOBS, **changes):
    return build_space(
        asked, knobs, **{"cores": 4, "sample_count": None, **changes}
    ).batch_size


@pytest.mark.parametrize(
    ("asked", "changes", "expected"),
    [
        ({"batch_size": {"min": 8, "max": 100}}, {}, (8, 12, *range(16, 97, 8), 100)),
        ({"batch_size": [64, 8]}, {}, (8, 64)),
        (
            {"batch_size": {"min": 8, "max": 64}},
            {"effective_batch_size": 96},
            (8, 12, 16, 24, 32, 48),
        ),
        ({}, {"effective_batch_size": 24, "replicas": 4}, (4, 8, 12, 24)),
        ({"batch_size": {"min": 3, "max": 12}}, {"replicas": 2}, (4, 6, 8, 12)),
        (
            {"batch_size": [8, 64, 512]},
            {"sample_count": 2000, "min_updates": 10},
            (8, 64, 512),
        ),
    ],
)
def test_the_batch_sizes_of_a_space(asked, changes, expected):
    assert sizes(asked, **changes) == expected


@pytest.mark.parametrize(
    ("changes", "largest"),
    [
        ({}, 4096),
        ({"on_gpu": True}, 65536),
        ({"sample_count": 2000, "min_updates": 10}, 200),
        (
            {"sample_count": 2000, "min_updates": 10, "effective_batch_size": 1024},
            1024,
        ),  # which decides on the updates
        (
            {"sample_count": 200, "min_updates": 10},
            32,
        ),  # what Keras takes, if nothing is said
    ],
)
def test_the_largest_batch_size_by_default(changes, largest):
    assert sizes(**changes)[-1] == largest


@given(st.integers(1, 3000), st.integers(1, 40), st.integers(1, 300))
@settings(max_examples=40)
def test_only_the_present_batch_size_may_leave_fewer_updates(samples, updates, present):
    allowed = sizes(
        sample_count=samples, min_updates=updates, baseline={"batch_size": present}
    )
    assert present in allowed
    enough = [
        size for size in allowed if size != present and samples // size >= updates
    ]
    if samples >= updates:
        assert set(allowed) == {present, *enough}
    else:  # so little data that no batch size leaves enough
        assert max(allowed) == present


@pytest.mark.parametrize(
    ("asked", "changes", "key", "numbers"),
    [
        ({"batch_size": [8, 9, 15]}, {"replicas": 2}, "space.batch_size", {9, 15, 2}),
        (
            {"batch_size": {"min": 9, "max": 10}},
            {"replicas": 4},
            "space.batch_size",
            {9, 10, 4},
        ),
        ({}, {"effective_batch_size": 15, "replicas": 2}, "space", {2, 100, 15}),
        ({}, {"sample_count": 1, "replicas": 2}, "device", {1, 2}),
        (
            {},
            {"knobs": ["workers"], "effective_batch_size": 64},
            "effective_batch_size",
            {64},
        ),
        ({"workers": [1]}, {"knobs": ["batch_size"]}, "space", set()),
        (
            {"workers": [-1, 2]},
            {},
            "space.workers",
            {1, 2},
        ),  # -1 is AUTOTUNE, which is for tf.data alone
    ],
)
def test_a_space_without_a_batch_size_or_with_another_knob_is_an_error(
    asked, changes, key, numbers
):
    with pytest.raises(UsageError) as caught:
        sizes(asked, **{"sample_count": 100, **changes})
    assert caught.value.key == key
    assert set(map(int, re.findall(r"\d+", str(caught.value)))) == numbers


@pytest.mark.parametrize(
    ("rates", "tolerance", "baseline", "chosen"),
    [
        ({4: 99.5, 32: 90, 64: 99, 128: 100, 256: 100.5}, 0.02, 32, 64),
        ({4: 99.5, 32: 90, 64: 99, 128: 100, 256: 100.5}, 0.02, 200, 256),
        ({4: 99.5, 32: 90, 64: 99, 128: 100, 256: 100.5}, 0.0, 32, 256),
        ({16: 100, 64: 100}, 0.02, 32, 16),  # at equal distance, the cheaper one
    ],
)
def test_the_nearest_to_the_baseline_within_the_tolerance_is_chosen(
    rates, tolerance, baseline, chosen
):
    configs = {FitConfig(batch): rate for batch, rate in rates.items()}
    assert nearest(configs, tolerance, FitConfig(baseline)) == FitConfig(chosen)


@pytest.mark.parametrize(
    "asked",
    [
        {"batch_size": [8, 0]},
        {"workers": {"min": -1, "max": 4}},
        {"max_queue_size": -2},
    ],
)
def test_what_no_knob_may_be_is_refused_before_anything_runs(asked):
    with pytest.raises(ValidationError, match=r"give a whole number from [01] on"):
        Space(**asked)
