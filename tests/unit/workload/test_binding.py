"""How the user's functions are called: their arguments, and the calls as code."""

import functools

import numpy as np
import pytest

from autofit.errors import UsageError
from autofit.workload.binding import bind_all, call_source_of, resolve_reference
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload
from tests.unit.workload.functions import make, shape


def build(width):
    raise AssertionError("binding calls nothing")


def make_photos(batch_size, folder):
    raise AssertionError("binding calls nothing")


def make_callbacks(path):
    raise AssertionError("binding calls nothing")


GIVEN = {"model_kwargs": {"width": 8}, "data_kwargs": {"folder": "."}}


def test_the_knobs_of_the_data_are_found_and_nothing_is_called():
    assert bind_all(Workload(build, make_photos, **GIVEN), resolve_reference) == {"data": {"batch_size": "batch_size"}}


@pytest.mark.parametrize(
    ("changes", "key", "problem"),
    [
        ({"model_kwargs": {}}, "model_kwargs", r"build\(width\) .* 'width'"),
        ({"data_kwargs": {"path": "."}}, "data_kwargs", r"make_photos\(batch_size, folder\) "),
        ({"validation": make_photos}, "validation_kwargs", "'folder'"),
        ({"fit_kwargs": {"callbacks": make_callbacks}}, "fit_kwargs.callbacks", "'path'"),
        ({"validation": Reference("math:squareroot")}, "validation", "math .*squareroot"),
    ],
)
def test_arguments_that_a_function_does_not_take_are_an_error(changes, key, problem):
    with pytest.raises(UsageError, match=problem) as caught:
        bind_all(Workload(build, make_photos, **{**GIVEN, **changes}), resolve_reference)
    assert caught.value.key == key


def test_a_partial_is_written_as_the_call_that_it_makes():
    data = functools.partial(make, files="x", workers=4)
    call_source = call_source_of(Workload(functools.partial(shape, 16), data, data, {"xla": True}))
    assert call_source.model == "shape(filters=16, xla=True)"
    assert (call_source.data, call_source.data_kwargs) == ("make", {"files": "x", "workers": 4})
    assert (call_source.validation, call_source.validation_kwargs) == ("make", {"files": "x", "workers": 4})
    assert call_source.imports == ("from tests.unit.workload.functions import make, shape",)


def named_otherwise(width, **options):
    return width, options


def variadic(first, *rest, depth=1):
    return first, rest, depth


def positional(width, /, depth=1):
    return width, depth


def test_a_partial_is_written_by_the_kinds_of_its_parameters_not_by_their_names():
    call_source = call_source_of(
        Workload(functools.partial(named_otherwise, 8, depth=3), functools.partial(named_otherwise, 4, kwargs=2))
    )
    assert call_source.model == "named_otherwise(width=8, depth=3)"
    assert (call_source.data, call_source.data_kwargs) == ("named_otherwise", {"width": 4, "kwargs": 2})
    call_source = call_source_of(Workload(functools.partial(variadic, 1, depth=3), functools.partial(variadic, 1)))
    assert (call_source.model, call_source.data_kwargs) == ("variadic(first=1, depth=3)", {"first": 1})


@pytest.mark.parametrize("part", [functools.partial(variadic, 1, 2, 3, depth=2), functools.partial(positional, 8, depth=2)])
def test_a_partial_whose_arguments_have_no_names_stays_one(part):
    call_source = call_source_of(Workload(part, part, None, {"extra": 1}, {"size": 2}))
    assert (call_source.model, call_source.imports) == ("build_model(extra=1)", ())
    assert (call_source.data, call_source.data_kwargs) == ("make_data", {"size": 2})


@pytest.mark.parametrize(
    ("build_model", "data", "elided"),
    [
        (shape, make, ()),
        (shape, functools.partial(make, files=np.ones(3)), ("data",)),
        (functools.partial(shape, np.ones(3)), make, ("model",)),
        (lambda: None, lambda batch_size: None, ("model", "data")),
        (shape, (np.ones(3), np.ones(3)), ("data",)),
        (shape, functools.partial(make, files="x" * 1000), ("data",)),
    ],
)
def test_what_code_cannot_write_is_elided(build_model, data, elided):
    call_source = call_source_of(Workload(build_model, data))
    assert call_source.elided == elided
    assert "array" not in f"{call_source.model} {call_source.data} {call_source.data_kwargs}"
    assert ("..." in call_source.model) == isinstance(build_model, functools.partial)


def test_arguments_of_fit_that_code_makes_are_written_as_code():
    options = {"callbacks": make_callbacks, "epochs": 3, "class_weight": {0: 1.0}}
    call_source = call_source_of(Workload(shape, make, fit_kwargs=options))
    assert call_source.fit_kwargs == {"epochs": 3, "class_weight": {0: 1.0}}
    assert call_source.fit_expressions == {"callbacks": "make_callbacks()"}
    assert f"from {__name__} import make_callbacks" in call_source.imports
    own = call_source_of(Workload(shape, make, fit_kwargs={"callbacks": []}))
    assert (own.fit_expressions, own.elided) == ({"callbacks": "..."}, ("fit",))
