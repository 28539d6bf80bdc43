"""Arguments of `fit` beside data and knobs."""

import numpy as np
import pytest

from autofit.errors import UsageError
from autofit.workload import fit_options


@pytest.mark.parametrize(
    ("options", "key", "problem"),
    [
        ({"batch_size": 32}, "batch_size", "batch_size"),
        ({"validation_data": 1}, "validation_data", " validation$"),
        ({"sample_weight": 1}, "sample_weight", r"\(x, y, sample_weight\)"),
        ({"workers": 1}, "workers", " in space"),
        ({"class_weigth": {}}, "class_weigth", "class_weight"),
        ({"steps_per_epoch": 0}, "steps_per_epoch", ": 0 "),
        ({"validation_split": 1.0}, "validation_split", r": 1\.0 "),
        ({"class_weight": {"cat": 2}}, "class_weight", "{'cat': 2}"),
        ({"callbacks": "early"}, "callbacks", "'early'"),
    ],
)
def test_what_fit_does_not_take_here_is_refused(options, key, problem):
    with pytest.raises(UsageError, match=problem) as caught:
        fit_options.validated(options)
    assert caught.value.key == f"fit_kwargs.{key}"


def test_weights_computed_with_numpy_become_plain_numbers():
    weights = fit_options.validated({"class_weight": {np.int64(0): np.float32(0.5)}})["class_weight"]
    assert weights == {0: 0.5}
    assert [type(part) for pair in weights.items() for part in pair] == [int, float]


def test_steps_keep_the_samples_of_an_epoch():
    options = {"steps_per_epoch": 100, "validation_steps": 10, "epochs": 5}
    assert fit_options.samples_of_epoch(options, 32) == 3200
    assert fit_options.rendered(options, 128, 32, scale_validation=True) == {
        "steps_per_epoch": 25,
        "validation_steps": 3,
        "epochs": 5,
    }
    assert fit_options.rendered(options, 128, 32, scale_validation=False)["validation_steps"] == 10


def test_class_weights_complete_x_and_y_only():
    x, y = np.zeros((4, 2)), np.zeros(4)
    weights = {"class_weight": {0: 1.0}}
    assert len(fit_options.with_class_weight((x, y), weights)) == 3
    assert fit_options.with_class_weight((x, y), {}) == (x, y)
    assert fit_options.with_class_weight(x, weights) is x
