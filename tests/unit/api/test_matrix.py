"""A matrix becomes cells; an error in it names its place."""

import pytest

from autofit.api.config import load
from autofit.api.config.load import apply, unfold
from autofit.errors import ConfigError, UsageError
from tests.unit.api.conftest import GOOD


def test_values_are_set_deep_in_a_copy_and_an_axis_may_set_several():
    arguments = {"model_kwargs": {"depth": 2}, "data": "d"}
    changed = apply({"model_kwargs.pixels, data_kwargs.pixels": 64, "space.workers": [1]}, arguments)
    assert changed == {
        "model_kwargs": {"depth": 2, "pixels": 64},
        "data": "d",
        "data_kwargs": {"pixels": 64},
        "space": {"workers": [1]},
    }
    assert arguments == {"model_kwargs": {"depth": 2}, "data": "d"}


@pytest.mark.parametrize(
    ("matrix", "key", "message"),
    [
        ([1], "matrix", "must map arguments"),
        ({}, "matrix", "must map arguments"),
        ({"a": "xyz"}, "matrix.a", "write a list of values"),
        ({"a": []}, "matrix.a", "write a list of values"),
    ],
)
def test_an_error_in_a_matrix_names_its_key(matrix, key, message):
    with pytest.raises(UsageError) as caught:
        unfold(matrix)
    assert caught.value.key == key
    assert message in caught.value.problem


def test_each_cell_of_a_file_has_the_arguments_of_a_tune(write):
    text = GOOD + (
        "model_kwargs: {depth: 2}\nmatrix:\n  model_kwargs.width: [8, 16]\n  dtype_policy: [float32, mixed_float16]\n"
    )
    cells = load.load_cells(write(text))
    assert [tuple(values.values()) for values, _ in cells] == [
        (8, "float32"), (8, "mixed_float16"), (16, "float32"), (16, "mixed_float16")
    ]  # fmt: skip  # one item a line would be longer, not clearer
    arguments = cells[2][1]
    assert (arguments["model_kwargs"], arguments["dtype_policy"]) == ({"depth": 2, "width": 16}, "float32")
    assert arguments["build_model"].path.name == "model.py"


@pytest.mark.parametrize(
    ("text", "line", "key", "message"),
    [
        ("", 1, None, "has no `matrix:`"),
        ("matrix: {max_trials: [3, none]}\n", 3, "matrix.max_trials", "'none' is not allowed"),
        ("matrix:\n  widht: [8]\n", 4, "matrix.widht", "unknown key"),
        ("matrix:\n  data.folder: [8]\n", 4, "matrix.data.folder", "folder cannot be set in it; make data a mapping"),
        ("matrix:\n  build_model: [model.py:f]\n", 4, "matrix.build_model", "does not define f"),
        ("matrix:\n  space.wrokers: [[1], [2]]\n", 4, "matrix.space.wrokers", "did you mean workers"),
    ],
)
def test_an_error_in_a_cell_names_its_line_and_key(write, text, line, key, message):
    with pytest.raises(ConfigError) as caught:
        load.load_cells(write(GOOD + text), sweep=True)
    assert (caught.value.line, caught.value.key) == (line, key)
    assert message in caught.value.problem


def test_each_error_of_the_cells_is_listed_once(write):
    text = "max_trials: 0\nmatrix:\n  model_kwargs.width: [8, 16]\n  device_memory: [1GiB, lots]\n  jit_compile: [maybe]\n"
    with pytest.raises(ConfigError) as caught:
        load.load_cells(write(GOOD + text))
    places = [(error.line, error.key) for error in (caught.value, *caught.value.others)]
    assert places == [(3, "max_trials"), (6, "matrix.device_memory"), (7, "matrix.jit_compile")]
