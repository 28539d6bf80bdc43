"""How Keras's own functions and objects count in a workload's identity."""

import functools

import keras
import numpy as np
import pytest

from autofit.workload import own_modules
from autofit.workload.fingerprint import identify
from autofit.workload.workload import Workload
from tests.unit.workload.functions import build, over


def fingerprint(*parts, **kwargs):
    return identify(Workload(*parts, **kwargs)).fingerprint


def test_of_what_is_installed_the_package_counts():
    factory = keras.utils.image_dataset_from_directory
    for data in (factory, functools.partial(factory, "photos"), over(factory), keras.utils.PyDataset):
        found = identify(Workload(build, data))
        assert found.versions == {"keras": keras.__version__}
        assert identify(Workload(build, data)) == found
    one = fingerprint(build, functools.partial(factory, "photos"))
    assert one != fingerprint(build, functools.partial(factory, "sounds"))
    assert one != fingerprint(build, functools.partial(keras.utils.text_dataset_from_directory, "photos"))


def test_no_file_of_an_installed_package_is_read(monkeypatch):
    monkeypatch.setattr(own_modules, "read", lambda content: pytest.fail("a file was read"))
    fingerprint(keras.utils.image_dataset_from_directory, np.linspace, model_kwargs={"kind": keras.layers.Dense})


def keras_data(x):
    made = keras.utils.PyDataset()
    made.x = x
    return made


def test_arrays_in_a_ready_made_dataset_count_by_their_form():
    x = np.zeros(2**20)
    data = keras_data(x), keras_data(x + 1), keras_data(x[1:])
    assert fingerprint(build, data[0]) == fingerprint(build, data[1]) != fingerprint(build, data[2])
