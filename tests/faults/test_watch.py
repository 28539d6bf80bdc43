"""`Watch` in plain trainings on each backend: the promise, and a slow run."""

import re

import pytest

from tests.commands import python
from tests.installed import needs

PROGRAM = """
import time
import numpy as np
import autofit

def build():
    import keras
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=1)
    return model

def data(batch_size, seconds=0.02):
    import keras

    class Rows(keras.utils.PyDataset):
        def __len__(self):
            return 60

        def __getitem__(self, index):
            time.sleep(seconds)
            return np.ones((batch_size, 8), "float32"), np.ones((batch_size, 1), "float32")

    return Rows()

if __name__ == "__main__":
    result = autofit.tune(build, data, space={"batch_size": [16]}, max_trials=2, progress=False)
    for changes in {}, {"seconds": 0.1}:
        print("BEGINS")
        build().fit(data(16, **changes), epochs=3, verbose=0, callbacks=[autofit.Watch(result)])
"""


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_trainings_on_a_backend(tmp_path, backend):
    needs(backend)
    (tmp_path / "program.py").write_text(PROGRAM)
    printed = python(
        "program.py",
        folder=tmp_path,
        KERAS_BACKEND=backend,
        XDG_DATA_HOME=str(tmp_path / "data"),
    )
    plain, slow = (part.splitlines()[1:] for part in printed.split("BEGINS")[1:])
    for lines in (plain, slow):
        assert [line.partition(": ")[2].partition(":")[0] for line in lines] == [
            "epoch 1",
            "epoch 2",
            "epoch 3",
        ]
    rates = [
        float(re.search(r"([\d.]+) of the tune's", lines[-1])[1])
        for lines in (plain, slow)
    ]
    assert rates[1] < rates[0]
    assert ": slower" in slow[-1]
