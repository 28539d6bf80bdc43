"""Arrays as `fit` takes them."""

import numpy as np
import pytest

from autofit.errors import UsageError
from autofit.records.knobs import FitConfig
from autofit.workload.inputs.arrays import Arrays
from autofit.workload.inputs.fit_input import ArrayBytes

X, Y = np.ones((20, 3), "float32"), np.zeros(20, "int8")


def opened(data, batch_size=8):
    assert Arrays.recognises(data)
    return Arrays(data, FitConfig(batch_size), lambda error: None, None)


@pytest.mark.parametrize(
    ("data", "parts", "form"),
    [
        (X, 0, np.ndarray),
        ({"a": X, "b": Y}, 0, dict),
        ((X, None), 2, np.ndarray),
        (([X, X], Y), 2, 2),
        ((X, None, np.ones(20)), 3, np.ndarray),
    ],
)
def test_a_batch_has_the_form_that_fit_packs(data, parts, form):
    """`form` is the type of a batch, or the length of a tuple."""
    data = opened(data)
    batch = data.batch()
    assert (len(batch) if isinstance(batch, tuple) else type(batch)) == form
    assert data.part_count == parts


@pytest.mark.parametrize("data", [[1, 2], (), (None, X), "text", (X, Y, Y, Y), (X, 3)])
def test_what_fit_does_not_take_is_not_recognised(data):
    assert not Arrays.recognises(data)


def test_floats_come_in_the_precision_of_keras():
    assert [part.dtype for part in opened((X.astype("float64"), Y)).batch()] == [
        "float32",
        "int8",
    ]


def test_fit_gets_the_full_batches_and_lists_of_inputs_as_lists():
    arguments = opened(([X, X], Y)).fit_arguments(5)
    assert isinstance(arguments["x"], list)
    assert [len(part) for part in (*arguments["x"], arguments["y"])] == [16, 16, 16]
    assert arguments["epochs"] == 3


def test_a_split_takes_the_last_samples_for_validation():
    training, validation = opened((np.arange(20.0), Y)).split(0.25)
    assert training.sample_count() == 15
    assert validation.validation_arguments(10)["validation_data"][0].tolist() == list(
        range(15, 20)
    )
    with pytest.raises(UsageError, match=r"0\.99 ") as caught:
        opened((X, Y)).split(0.99)
    assert caught.value.key == "fit_kwargs.validation_split"


def test_every_copy_is_counted(tmp_path):
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r").view(np.ndarray)
    counted = opened((mapped, Y)).array_bytes()
    assert (counted.mapped, counted.tensors) == (X.nbytes, (X.nbytes, Y.nbytes))
    assert (
        counted.conversion == X.nbytes - Y.nbytes
    )  # x is copied once more before y has its tensor
    doubled = opened((X.astype("float64"), Y)).array_bytes()
    assert (
        doubled.conversion == 2 * X.nbytes - Y.nbytes
    )  # and the array that is cast stays meanwhile


def test_arrays_copied_later_need_no_room_beside_those_copied_first():
    first, later = ArrayBytes(1, (100, 10), 80), ArrayBytes(2, (30,), 20)
    assert first.then(later) == ArrayBytes(3, (100, 10, 30), 50)
    assert later.then(first) == ArrayBytes(3, (30, 100, 10), 80)


def test_arrays_without_samples_are_refused():
    with pytest.raises(UsageError, match="the arrays have no samples"):
        opened((X[:0], Y[:0]))
