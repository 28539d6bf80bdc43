"""Batches as nests of arrays."""

import numpy as np
import pytest

from autofit.errors import UsageError
from autofit.workload.inputs import batch


def test_a_nest_keeps_its_structure_with_tuples_for_lists():
    one = np.ones(3)
    doubled = batch.mapped(({"a": one, "b": [one, None]}, one), lambda leaf: 2 * leaf)
    assert isinstance(doubled[0]["b"], tuple)
    assert doubled[0]["b"][1] is None
    assert doubled[0]["a"][0] == doubled[1][0] == 2


def test_missing_parts_are_no_leaves():
    assert [len(leaf) for leaf in batch.leaves((np.ones(3), None, {"w": np.ones(2)}))] == [3, 2]


@pytest.mark.parametrize("wrong", [["text"], (1, 2), (np.ones(()),), (np.ones((0, 3)),)])
def test_what_holds_no_samples_is_refused(wrong):
    with pytest.raises(UsageError, match="the data"):
        batch.checked(wrong, "the data")


@pytest.mark.parametrize(
    ("lengths", "asked", "samples"), [((8, 8), 8, 8), ((24, 8), 8, 8), ((24, 7), 8, 24), ((5,), None, 5)]
)
def test_samples_are_those_of_the_batch_size_where_an_axis_has_them(lengths, asked, samples):
    assert batch.samples_of(tuple(np.ones((length, 2)) for length in lengths), asked) == samples


def test_bytes_count_every_array():
    assert batch.bytes_of({"a": np.ones(4, "float32"), "b": (np.ones(2, "int8"), None)}) == 18
