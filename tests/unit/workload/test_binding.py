"""How the user's functions are called: their arguments, and the calls as code."""

import sys
from functools import partial

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


def make_callbacks(path): ...


GIVEN = {"model_kwargs": {"width": 8}, "data_kwargs": {"folder": "."}}


def test_the_knobs_of_the_data_are_found_and_nothing_is_called():
    assert bind_all(Workload(build, make_photos, **GIVEN), resolve_reference) == {
        "data": {"batch_size": "batch_size"}
    }


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"model_kwargs": {}}, "model_kwargs"),
        ({"data_kwargs": {"path": "."}}, "data_kwargs"),
        ({"validation": make_photos}, "validation_kwargs"),
        ({"fit_kwargs": {"callbacks": make_callbacks}}, "fit_kwargs.callbacks"),
        ({"validation": Reference("math:squareroot")}, "validation"),
    ],
)
def test_arguments_that_a_function_does_not_take_are_an_error(changes, key):
    with pytest.raises(UsageError) as caught:
        bind_all(
            Workload(build, make_photos, **{**GIVEN, **changes}), resolve_reference
        )
    assert caught.value.key == key


class Trainer:
    """A class of the user's whose methods make the data."""

    def dataset(self): ...

    @classmethod
    def of_class(cls): ...

    def source(self):
        return call_source_of(Workload(shape, self.dataset))


trainer = Trainer()


def local():
    def photos(): ...

    return photos


MODULE = "tests.unit.workload.functions"


@pytest.mark.parametrize(
    ("source", "called", "is_imported"),
    [
        (trainer.source(), "self.dataset", False),
        (call_source_of(Workload(shape, trainer.dataset)), "trainer.dataset", False),
        (call_source_of(Workload(shape, Trainer().dataset)), "trainer.dataset", False),
        (call_source_of(Workload(shape, Trainer.of_class)), "Trainer.of_class", True),
        (call_source_of(Workload(shape, Trainer.dataset)), "Trainer.dataset", True),
        (call_source_of(Workload(shape, local())), "photos", False),
        (call_source_of(Workload(shape, lambda: None)), "make_data", False),
    ],
)
def test_a_function_is_called_as_the_users_code_calls_it(source, called, is_imported):
    assert (source.data, source.elided) == (called, () if is_imported else ("data",))
    assert (f"from {__name__} import Trainer" in source.imports) == is_imported


@pytest.mark.parametrize(
    ("build_model", "data", "model", "called", "kwargs", "elided"),
    [
        (shape, make, "shape()", "make", {}, ()),
        (
            partial(shape, xla=True),
            partial(make, files="x"),
            "shape(xla=True)",
            "make",
            {"files": "x"},
            (),
        ),
        (
            partial(shape, 16),
            partial(make, "x"),
            "build_model()",
            "make_data",
            {},
            ("model", "data"),
        ),
        (
            partial(shape, filters=np.ones(3)),
            make,
            "shape(...)",
            "make",
            {},
            ("model",),
        ),
        (shape, (np.ones(3), np.ones(3)), "shape()", "data", {}, ("data",)),
        (shape, partial(make, files="x" * 1000), "shape()", "make", {}, ("data",)),
    ],
)
def test_calls_are_written_as_code_and_what_code_cannot_write_is_elided(
    build_model, data, model, called, kwargs, elided
):
    source = call_source_of(Workload(build_model, data))
    assert (source.model, source.data, source.data_kwargs, source.elided) == (
        model,
        called,
        kwargs,
        elided,
    )
    names = sorted(
        {name.partition("(")[0] for name in (model, called)} & {"make", "shape"}
    )
    assert source.imports == (
        (f"from {MODULE} import {', '.join(names)}",) if names else ()
    )


def test_arguments_of_fit_that_code_makes_are_written_as_code():
    options = {"callbacks": make_callbacks, "epochs": 3, "class_weight": {0: 1.0}}
    source = call_source_of(Workload(shape, make, fit_kwargs=options))
    assert source.fit_kwargs == {"epochs": 3, "class_weight": {0: 1.0}}
    assert source.fit_expressions == {"callbacks": "make_callbacks()"}
    assert f"from {__name__} import make_callbacks" in source.imports
    own = call_source_of(Workload(shape, make, fit_kwargs={"callbacks": []}))
    assert (own.fit_expressions, own.elided) == ({"callbacks": "..."}, ("fit",))
    inner = call_source_of(Workload(shape, make, fit_kwargs={"callbacks": local()}))
    assert (inner.fit_expressions, inner.elided) == (
        {"callbacks": "photos()"},
        ("fit",),
    )


@pytest.mark.parametrize("file", ["train.py", "my-train.py", "2nd.py"])
def test_the_import_lines_are_code_for_a_file_of_any_name(tmp_path, monkeypatch, file):
    (tmp_path / file).write_text("def build(): ...\ndef data(): ...\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    source = call_source_of(
        Workload(
            *(Reference(f"{file}:{name}", str(tmp_path)) for name in ("build", "data"))
        )
    )
    made = {}
    exec("\n".join(source.imports), made)
    assert (
        made["build"].__module__ == made["data"].__module__ == file.removesuffix(".py")
    )
    del sys.modules[file.removesuffix(".py")]
