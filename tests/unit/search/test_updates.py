"""The fewest updates of an epoch: which batch sizes they leave to the search."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.search.space import build_space


def sizes(asked=None, samples=2000, updates=10, **changes):
    given_knobs = {"cores": 2, "sample_count": samples, "min_updates": updates, **changes}
    return build_space(asked, ["batch_size"], **given_knobs).batch_size


def test_batch_sizes_that_leave_fewer_updates_are_not_searched():
    assert max(sizes()) == 200
    assert max(sizes(updates=1)) == 2000
    assert max(sizes({"batch_size": {"min": 8, "max": 1024}})) == 200
    assert sizes({"batch_size": [8, 64, 512]}) == (8, 64)
    assert max(sizes(samples=None)) == 4096


@given(st.integers(1, 3000), st.integers(1, 40), st.integers(1, 300))
def test_only_the_present_batch_size_may_leave_fewer(samples, updates, present):
    found = sizes(samples=samples, updates=updates, baseline={"batch_size": present})
    assert present in found
    if samples >= updates:
        assert all(samples // size >= updates for size in found if size != present)
    else:  # so little data that no batch size leaves enough
        assert all(size <= max(present, 1) for size in found)


def test_the_users_present_batch_size_stays_if_the_user_lists_it():
    assert sizes({"batch_size": [8, 512]}, baseline={"batch_size": 512}) == (8, 512)
    assert sizes(samples=200, baseline={"batch_size": 64})[-1] == 64
    assert 32 in sizes(samples=200)  # what Keras takes, if nothing is said


@pytest.mark.parametrize("samples", [1, 3, 8])
def test_tiny_data_is_searched_up_to_the_present_batch_size(samples):
    found = sizes(samples=samples, baseline={"batch_size": 4})
    assert found == tuple(size for size in (1, 2, 3, 4) if size <= samples or size == 4)
    assert sizes({"batch_size": [64, 128]}, samples=samples) == (64,)


def test_an_effective_batch_size_decides_on_the_updates_itself():
    assert sizes(effective_batch_size=1024)[-1] == 1024
