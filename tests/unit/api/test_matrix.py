"""A matrix becomes cells; an error in it names its place."""

import pytest

from autofit.api.config import load
from autofit.api.config.load import apply
from autofit.errors import ConfigError
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
    ("text", "line", "key"),
    [
        ("", 1, None),
        ("matrix: [1]\n", 3, "matrix"),
        ("matrix: {}\n", 3, "matrix"),
        ("matrix: {max_trials: []}\n", 3, "matrix.max_trials"),
        ("matrix: {max_trials: [3, none]}\n", 3, "matrix.max_trials"),
        ("matrix:\n  widht: [8]\n", 4, "matrix.widht"),
        ("matrix:\n  data.folder: [8]\n", 4, "matrix.data.folder"),
        ("matrix:\n  build_model: [model.py:f]\n", 4, "matrix.build_model"),
    ],
)
def test_an_error_in_a_matrix_or_a_cell_names_its_line_and_key(write, text, line, key):
    with pytest.raises(ConfigError) as caught:
        load.load_cells(write(GOOD + text), sweep=True)
    assert (caught.value.line, caught.value.key) == (line, key)


def test_each_error_of_the_cells_is_listed_once(write):
    text = "max_trials: 0\nmatrix:\n  model_kwargs.width: [8, 16]\n  device_memory: [1GiB, lots]\n  jit_compile: [maybe]\n"
    with pytest.raises(ConfigError) as caught:
        load.load_cells(write(GOOD + text))
    places = [(error.line, error.key) for error in (caught.value, *caught.value.others)]
    assert places == [(3, "max_trials"), (6, "matrix.device_memory"), (7, "matrix.jit_compile")]
