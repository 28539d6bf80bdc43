"""`Watch` in plain trainings on each backend: rates and memory against the promise, a slow run, and a leak."""

import ast
import os
import subprocess
import sys
import textwrap

import pytest

from tests.installed import needs

pytestmark = [pytest.mark.slow, pytest.mark.quiet]

PROGRAM = """
    import time
    import numpy as np
    import autofit

    def build():
        import keras
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    def data(batch_size, seconds=0.02, leaks=False):
        import keras
        kept = []

        class Rows(keras.utils.PyDataset):
            def __len__(self):
                return 60

            def __getitem__(self, index):
                time.sleep(seconds)
                if leaks:
                    kept.append(np.ones(2 * 2**20))
                return np.ones((batch_size, 8), "float32"), np.ones((batch_size, 1), "float32")

        return Rows()

    if __name__ == "__main__":
        from autofit.api import watch
        from autofit.storage import trainings

        result = autofit.tune(build, data, space={"batch_size": [16]}, max_trials=2, progress=False)
        watch._POLL_SECONDS, watch._READING_SHARE, watch._LEAST_SECONDS = 0.8, 1.0, 2.0
        kinds = {"plain": {}, "slow": {"seconds": 0.05}, "leak": {"leaks": True}}
        for kind, changes in kinds.items():
            said, model = [], build()
            seen = autofit.Watch(result, say=said.append)
            model.fit(data(16, **changes), epochs=3, verbose=0, callbacks=[seen])
            kept = trainings.of(result.study)[-1]
            is_restored = model.train_function is seen._step
            print("SAW", repr((kind, (said, kept.rate_ratio, kept.host_ratio, kept.ended, is_restored))))
            time.sleep(1)  # a training is kept by the second in which it started
"""


@pytest.fixture(params=["tensorflow", "jax", "torch"], scope="session")
def backend(request):
    needs(request.param)
    return request.param


@pytest.fixture(scope="session")
def trainings(tmp_path_factory, backend):
    """What was seen of each training, by its kind."""
    folder = tmp_path_factory.mktemp("watched")
    file = folder / "program.py"
    file.write_text(textwrap.dedent(PROGRAM))
    variables = {**os.environ, "KERAS_BACKEND": backend, "XDG_DATA_HOME": str(folder / "data")}
    run = subprocess.run(
        [sys.executable, str(file)], env=variables, capture_output=True, text=True, timeout=200, check=False
    )
    lines = [line.removeprefix("SAW ") for line in run.stdout.splitlines() if line.startswith("SAW ")]
    assert len(lines) == 3, run.stderr
    return dict(map(ast.literal_eval, lines))


def test_a_training_as_promised(trainings):
    said, rate_ratio, host_ratio, ended, is_restored = trainings["plain"]
    assert rate_ratio == pytest.approx(1, abs=0.1)
    assert 0.3 < host_ratio < 2
    assert ended
    assert is_restored
    (line,) = said
    assert line.startswith(f"autofit: the training ran at {rate_ratio:.2f} of the promised ")


def test_a_slow_training_and_a_leak_are_mentioned_once(trainings):
    (first, _last), rate_ratio, *_ = trainings["slow"]
    assert rate_ratio == pytest.approx(0.4, abs=0.1)
    assert first.startswith("autofit: this training runs at ")
    assert first.endswith("for their batches")
    said, *_ = trainings["leak"]
    assert sum(line.startswith("autofit: memory grows: ") for line in said) == 1
    assert "the machine's" in said[0]
