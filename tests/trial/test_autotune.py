"""`tf.data` as everybody writes it, with AUTOTUNE: what a trial reads of it, and what TensorFlow makes of it."""

import keras
import numpy as np
import pytest

from autofit.records.knobs import STEPS_PER_EXECUTION
from autofit.records.states import Outcome
from autofit.records.trial import AUTOTUNE, FitConfig
from tests import workloads as w

SAMPLES = 480


def make_data(batch_size=24, num_parallel_calls=AUTOTUNE, prefetch=AUTOTUNE):
    import tensorflow as tf

    x = np.zeros((SAMPLES, w.PIXELS, w.PIXELS, 3), "float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, np.zeros((SAMPLES, 1), "float32")))
    return dataset.map(lambda x, y: (x + 1.0, y), num_parallel_calls).batch(batch_size).prefetch(prefetch)


class WithWorkers(keras.utils.PyDataset):
    def __init__(self, batch_size=12, **kwargs):
        super().__init__(**{"workers": 3, "max_queue_size": 5, **kwargs})
        self.batch_size = batch_size

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return np.zeros((self.batch_size, w.PIXELS, w.PIXELS, 3), "float32"), np.zeros((self.batch_size, 1), "float32")


def defaults_of_data(described):
    """The values of the knobs that the data takes; the model has its own."""
    return {knob: value for knob, value in described.defaults.items() if knob != STEPS_PER_EXECUTION}


def test_the_factorys_own_values_are_described(turn, play):
    described = play(turn(data=make_data), FitConfig(), role="describe")
    assert described.input_kind == "tf.data"
    assert described.sample_count == SAMPLES
    assert defaults_of_data(described) == {"batch_size": 24, "workers": AUTOTUNE, "max_queue_size": AUTOTUNE}
    fixed = play(turn(data=make_data, data_kwargs={"prefetch": 2}), FitConfig(), role="describe")
    assert defaults_of_data(fixed) == {"batch_size": 24, "workers": AUTOTUNE}


def test_the_values_of_a_pydataset_are_described_wherever_they_are_set(turn, play):
    as_class = play(turn(data=WithWorkers), FitConfig(), role="describe")
    set_in_it = {"workers": 3, "max_queue_size": 5, "use_multiprocessing": False}
    assert defaults_of_data(as_class) == {"batch_size": 12, **set_in_it}
    as_object = play(turn(data=WithWorkers(20, workers=1)), FitConfig(), role="describe")
    assert defaults_of_data(as_object) == {"batch_size": 20, **set_in_it, "workers": 1}


def test_arrays_have_no_values_of_their_own(turn, play):
    x = np.zeros((SAMPLES, w.PIXELS, w.PIXELS, 3), "float32")
    described = play(turn(data=(x, np.zeros((SAMPLES, 1), "float32"))), FitConfig(), role="describe")
    assert defaults_of_data(described) == {}
    assert described.sample_count == SAMPLES


@pytest.mark.slow
@pytest.mark.parametrize("knobs", [(AUTOTUNE, AUTOTUNE), (AUTOTUNE, 4), (1, AUTOTUNE)])
def test_a_trial_measures_autotune(turn, play, knobs):
    measured = play(turn(data=make_data, validation=make_data), FitConfig(8, *knobs))
    assert measured.outcome is Outcome.OK, measured.evidence
    assert measured.samples_per_second > 0
    assert measured.input_samples_per_second > 0


def test_validation_without_workers_goes_with_training_under_autotune(turn, play):
    x = np.zeros((SAMPLES, w.PIXELS, w.PIXELS, 3), "float32")
    launcher = turn(data=make_data, validation=(x, np.zeros((SAMPLES, 1), "float32")))
    assert play(launcher, FitConfig(8, AUTOTUNE, AUTOTUNE), role="confirm").outcome is Outcome.OK
