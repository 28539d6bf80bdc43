"""`Watch` in plain trainings on each backend: rates and memory against the promise, a slow run, and a leak."""

import os
import subprocess
import sys
import textwrap

import pytest

from tests.installed import needs

PROGRAM = """
    import sys, time
    import numpy as np
    import autofit

    KIND = sys.argv[1]

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
        watch._POLL_SECONDS, watch._READING_SHARE, watch._LEAST_SECONDS = 0.2, 1.0, 1.0
        said = []
        slow = {"plain": {}, "slow": {"seconds": 0.05}, "leak": {"leaks": True}}[KIND]
        model = build()
        seen = autofit.Watch(result, say=said.append)
        model.fit(data(16, **slow), epochs=3, verbose=0, callbacks=[seen])
        (kept,) = trainings.of(result.study)
        print("SAW", repr((said, kept.rate_ratio, kept.host_ratio, kept.ended, model.train_function is seen._step)))
"""


@pytest.fixture(params=["tensorflow", "jax", "torch"], scope="session")
def backend(request):
    needs(request.param)
    return request.param


def ran(tmp_path, backend, kind):
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(PROGRAM))
    variables = {**os.environ, "KERAS_BACKEND": backend, "XDG_DATA_HOME": str(tmp_path / "data")}
    run = subprocess.run(
        [sys.executable, str(file), kind], env=variables, capture_output=True, text=True, timeout=200, check=False
    )
    (line,) = (line for line in run.stdout.splitlines() if line.startswith("SAW"))
    return eval(line.removeprefix("SAW "))  # printed by the program above


@pytest.mark.quiet
def test_a_training_as_promised(tmp_path, backend):
    said, rate_ratio, host_ratio, ended, is_restored = ran(tmp_path, backend, "plain")
    assert rate_ratio == pytest.approx(1, abs=0.1)
    assert 0.3 < host_ratio < 2
    assert ended
    assert is_restored
    (line,) = said
    assert line.startswith(f"autofit: the training ran at {rate_ratio:.2f} of the promised ")


@pytest.mark.quiet
def test_a_slow_training_and_a_leak_are_mentioned_once(tmp_path, backend):
    said, rate_ratio, *_ = ran(tmp_path, backend, "slow")
    assert rate_ratio == pytest.approx(0.4, abs=0.1)
    first, _last = said
    assert first.startswith("autofit: this training runs at ")
    assert first.endswith(": the step or the input is slower than in the trials")
    said, *_ = ran(tmp_path, backend, "leak")
    assert sum(line.startswith("autofit: memory grows: ") for line in said) == 1
    assert "the machine's" in said[0]
