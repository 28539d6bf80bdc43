"""The user's functions and their arguments, bound before anything runs."""

import pytest

from autofit.errors import UsageError
from autofit.workload.binding import bind_all, resolve_reference
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload


def build(width):
    raise AssertionError("binding calls nothing")


def make(batch_size, folder):
    raise AssertionError("binding calls nothing")


def make_callbacks(path):
    raise AssertionError("binding calls nothing")


GIVEN = {"model_kwargs": {"width": 8}, "data_kwargs": {"folder": "."}}


def test_the_knobs_of_the_data_are_found_and_nothing_is_called():
    assert bind_all(Workload(build, make, **GIVEN), resolve_reference) == {"data": {"batch_size": "batch_size"}}


@pytest.mark.parametrize(
    ("changes", "key", "problem"),
    [
        ({"model_kwargs": {}}, "model_kwargs", r"build\(width\) .* 'width'"),
        ({"data_kwargs": {"path": "."}}, "data_kwargs", r"make\(batch_size, folder\) "),
        ({"validation": make}, "validation_kwargs", "'folder'"),
        ({"fit_kwargs": {"callbacks": make_callbacks}}, "fit_kwargs.callbacks", "'path'"),
        ({"validation": Reference("math:squareroot")}, "validation", "math .*squareroot"),
    ],
)
def test_arguments_that_a_function_does_not_take_are_an_error(changes, key, problem):
    with pytest.raises(UsageError, match=problem) as caught:
        bind_all(Workload(build, make, **{**GIVEN, **changes}), resolve_reference)
    assert caught.value.key == key
