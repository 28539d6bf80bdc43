"""Keras's own interface for data, and loaders that are ready-made."""

import numpy as np
import pytest

from autofit.records.states import Outcome
from autofit.records.trial import FitConfig
from tests import workloads as w
from tests.installed import needs

ROWS = 100


def rows():
    return np.ones((ROWS, w.PIXELS, w.PIXELS, 3), "float32"), np.ones((ROWS, 1), "float32")


def adapter(batch_size=8):
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter  # public in no release yet

    class Rows(DataAdapter):
        num_batches = property(lambda self: -(-ROWS // batch_size))
        batch_size = property(lambda self: batch_size)
        has_partial_batch = property(lambda self: ROWS % batch_size > 0)
        partial_batch_size = property(lambda self: ROWS % batch_size or None)

        def get_numpy_iterator(self):
            x, y = rows()
            return ((x[at : at + batch_size], y[at : at + batch_size]) for at in range(0, ROWS, batch_size))

        get_jax_iterator = get_numpy_iterator

        def get_tf_dataset(self):
            import tensorflow as tf

            return tf.data.Dataset.from_tensor_slices(rows()).batch(batch_size)

        def get_torch_dataloader(self):
            return ready_made(batch_size)

    return Rows()


def ready_made(batch_size=8):
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    return DataLoader(TensorDataset(*map(torch.from_numpy, rows())), batch_size=batch_size, shuffle=True)


@pytest.fixture(scope="session")
def backend(request):
    needs(request.param)
    return request.param


SLOW = pytest.param("tensorflow", marks=pytest.mark.slow)
BACKENDS = pytest.mark.parametrize("backend", ["jax", "torch", SLOW], indirect=True)


@BACKENDS
def test_a_data_adapter_is_trained_on(launched, play, backend):
    launcher = launched(data=adapter)
    described = play(launcher, FitConfig(8), role="describe")
    assert (described.input_kind, described.knobs) == ("DataAdapter", {"batch_size": "batch_size"})
    assert described.sample_count == 104  # the last batch counts as full
    measured = play(launcher, FitConfig(24))
    assert measured.outcome is Outcome.OK, measured.traceback


@BACKENDS
def test_a_ready_made_loader_is_made_again_with_the_knobs(launched, play, backend):
    needs("torch")
    launcher = launched(data=ready_made(), validation=ready_made(50))
    described = play(launcher, FitConfig(8), role="describe")
    assert set(described.knobs) == {"batch_size", "workers", "prefetch_factor"}
    assert (described.sample_count, described.defaults["batch_size"], described.defaults["workers"]) == (ROWS, 8, 0)
    assert "batch_size" not in described.validation_knobs
    measured = play(launcher, FitConfig(24, 0, None, True, 2))
    assert measured.outcome is Outcome.OK, measured.traceback
