"""The values of knobs that the data has without a config, and `tf.data` with AUTOTUNE."""

import numpy as np
import pytest

from autofit.records.knobs import AUTOTUNE, STEPS_PER_EXECUTION, FitConfig
from autofit.records.states import Outcome
from tests import workloads as w

SAMPLES = 480
ARRAYS = (
    np.zeros((SAMPLES, w.PIXELS, w.PIXELS, 3), "float32"),
    np.zeros((SAMPLES, 1), "float32"),
)


def make_data(batch_size=24, num_parallel_calls=AUTOTUNE, prefetch=AUTOTUNE):
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices(ARRAYS)
    return (
        dataset.map(lambda x, y: (x + 1.0, y), num_parallel_calls)
        .batch(batch_size)
        .prefetch(prefetch)
    )


class WithWorkers(w.Cases):
    def __init__(self, batch_size=24, **kwargs):
        super().__init__(batch_size, **{"workers": 3, "max_queue_size": 5, **kwargs})


OF_PYDATASET = {
    "batch_size": 24,
    "workers": 3,
    "max_queue_size": 5,
    "use_multiprocessing": False,
}


@pytest.mark.parametrize(
    ("parts", "values"),
    [
        (
            {"data": make_data},
            {"batch_size": 24, "workers": AUTOTUNE, "max_queue_size": AUTOTUNE},
        ),
        ({"data": WithWorkers}, OF_PYDATASET),
        (
            {"data": WithWorkers(20, workers=1)},
            {**OF_PYDATASET, "batch_size": 20, "workers": 1},
        ),
        ({"data": ARRAYS}, {}),
    ],
)
def test_the_values_of_the_knobs_are_described_wherever_they_are_set(
    turn, play, parts, values
):
    described = play(turn(**parts), FitConfig(), role="describe")
    assert described.defaults == {**values, STEPS_PER_EXECUTION: 1}


def test_autotune_is_measured_and_validated(turn, play):
    launcher = turn(data=make_data, validation=ARRAYS)
    measured = play(launcher, FitConfig(8, AUTOTUNE, AUTOTUNE))
    assert measured.samples_per_second <= measured.input_samples_per_second
    assert (
        play(launcher, FitConfig(8, AUTOTUNE, 4), role="confirm").outcome is Outcome.OK
    )
