import functools

import numpy as np
import pytest

from autofit.workload.call_source import call_source_of
from autofit.workload.workload import Workload
from tests.unit.workload.functions import make, shape


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


def make_callbacks():
    return []


def test_arguments_of_fit_that_code_makes_are_written_as_code():
    options = {"callbacks": make_callbacks, "epochs": 3, "class_weight": {0: 1.0}}
    call_source = call_source_of(Workload(shape, make, fit_kwargs=options))
    assert call_source.fit_kwargs == {"epochs": 3, "class_weight": {0: 1.0}}
    assert call_source.fit_expressions == {"callbacks": "make_callbacks()"}
    assert f"from {__name__} import make_callbacks" in call_source.imports
    own = call_source_of(Workload(shape, make, fit_kwargs={"callbacks": []}))
    assert (own.fit_expressions, own.elided) == ({"callbacks": "..."}, ("fit",))
