from types import SimpleNamespace

import pytest

from autofit.errors import UsageError
from autofit.workload.accumulation import accumulate, place_of, steps_of


def optimizer(**attributes):
    return SimpleNamespace(
        **{"built": False, "gradient_accumulation_steps": None, **attributes}
    )


def test_as_many_batches_as_make_an_update():
    assert [steps_of(b, 1024) for b in (1024, 256, 200, 2048)] == [1, 4, 5, 1]
    assert (steps_of(32, None), steps_of(None, 64)) == (1, 1)


def test_the_optimizer_that_updates_the_weights_is_told():
    inner = optimizer()
    plain, scaled = (
        SimpleNamespace(optimizer=outer)
        for outer in (optimizer(), SimpleNamespace(inner_optimizer=inner))
    )
    accumulate(plain, 4)
    accumulate(scaled, 4)
    assert (
        plain.optimizer.gradient_accumulation_steps
        == inner.gradient_accumulation_steps
        == 4
    )
    assert place_of(plain, lambda: None) == "optimizer"
    assert place_of(scaled, lambda: None) == "optimizer.inner_optimizer"
    assert (
        place_of(plain, lambda gradient_accumulation_steps=None: None) == "build_model"
    )


@pytest.mark.parametrize(
    ("made", "named"),
    [
        (optimizer(built=True), "gradient_accumulation_steps"),
        (SimpleNamespace(), "SimpleNamespace"),
    ],
)
def test_an_optimizer_that_cannot_accumulate_is_an_error(made, named):
    with pytest.raises(UsageError, match=named):
        accumulate(SimpleNamespace(optimizer=made), 4)
