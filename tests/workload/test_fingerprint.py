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
    return identify(Workload(*parts, **kwargs))


def test_what_is_installed_counts_by_its_name():
    factory = keras.utils.image_dataset_from_directory
    for data in (factory, functools.partial(factory, "photos"), over(factory), keras.utils.PyDataset):
        assert fingerprint(build, data) == fingerprint(build, data)
    one = fingerprint(build, functools.partial(factory, "photos"))
    assert one != fingerprint(build, functools.partial(factory, "sounds"))
    assert one != fingerprint(build, functools.partial(keras.utils.text_dataset_from_directory, "photos"))


def test_no_file_of_an_installed_package_is_read(monkeypatch):
    monkeypatch.setattr(own_modules, "read", lambda content: pytest.fail("a file was read"))
    fingerprint(keras.utils.image_dataset_from_directory, np.linspace, model_kwargs={"kind": keras.layers.Dense})
