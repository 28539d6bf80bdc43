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


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("", 1, None),
        ("matrix: {}\n", 3, "matrix"),
        ("matrix: {max_trials: []}\n", 3, "matrix.max_trials"),
        ("matrix: {max_trials: [3, none]}\n", 3, "matrix.max_trials"),
        ("matrix:\n  widht: [8]\n", 4, "matrix.widht"),
        ("matrix:\n  build_model: [model.py:f]\n", 4, "matrix.build_model"),
    ],
)
def test_an_error_in_a_matrix_or_a_cell_names_its_line_and_key(write, text, line, key):
    with pytest.raises(ConfigError) as caught:
        load.load_cells(write(GOOD + text), sweep=True)
    assert (caught.value.line, caught.value.key) == (line, key)
