"""Arguments of `fit` other than data and knobs."""

import numpy as np
import pytest

from autofit.errors import UsageError
from autofit.workload import fit_options
from autofit.workload.workload import Workload
from tests.unit.workload.functions import build, make


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 32), ("workers", 1), ("class_weigth", {}), ("steps_per_epoch", 0),
        ("class_weight", {"cat": 2}),
        ("callbacks", "early"), ("validation_split", 1.0),
    ],
)  # fmt: skip  # one item a line would be longer, not clearer
def test_what_fit_does_not_take_here_is_refused(name, value):
    with pytest.raises(UsageError) as caught:
        Workload(build, make, fit_kwargs={name: value, "epochs": 3})
    assert caught.value.key == f"fit_kwargs.{name}"


def test_weights_computed_with_numpy_become_plain_numbers():
    weights = fit_options.validated({"class_weight": {np.int64(0): np.float32(0.5)}})[
        "class_weight"
    ]
    assert weights == {0: 0.5}
    assert [type(part) for pair in weights.items() for part in pair] == [int, float]


def test_steps_keep_the_samples_of_an_epoch():
    options = {"steps_per_epoch": 100, "validation_steps": 10, "epochs": 5}
    scaled = fit_options.rendered(options, 128, 32, scale_validation=True)
    assert scaled == {"steps_per_epoch": 25, "validation_steps": 3, "epochs": 5}
    assert fit_options.rendered(options, 128, 32, scale_validation=False) == {
        **scaled,
        "validation_steps": 10,
    }


def test_class_weights_complete_x_and_y_only():
    x, y = np.zeros((4, 2)), np.zeros(4)
    weights = {"class_weight": {0: 1.0}}
    assert len(fit_options.with_class_weight((x, y), weights)) == 3
    assert fit_options.with_class_weight((x, y), {}) == (x, y)
    assert fit_options.with_class_weight(x, weights) is x
