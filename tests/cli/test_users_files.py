"""The user's files are the same before and after a tune, and plain `fit` runs after it, however the
tune ends.
"""

import hashlib
import subprocess
import sys

import pytest

from tests import commands

PROGRAM = """
import sys
import numpy as np
import tensorflow as tf
import keras


class SaveBest(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.save_weights("best.weights.h5")


def data(batch_size=32, num_parallel_calls=1):
    numbers = tf.data.Dataset.range(400)
    images = numbers.map(lambda i: (tf.fill((8,), tf.cast(i, tf.float32)), i % 2))
    batches = images.cache("cache").batch(batch_size)
    return batches.map(lambda x, y: (x + 1, y), num_parallel_calls=num_parallel_calls)


def build_model(fails=False):
    layers = [keras.Input((7 if fails else 8,)), keras.layers.Dense(2, activation="softmax")]
    model = keras.Sequential(layers)
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


if __name__ == "__main__":
    callbacks = [SaveBest(), keras.callbacks.CSVLogger("epochs.csv")]
    if sys.argv[1] == "plain":
        build_model().fit(data(), verbose=0, callbacks=callbacks)
    else:
        import autofit

        result = autofit.tune(
            build_model,
            data,
            model_kwargs={"fails": sys.argv[1] == "fails"},
            fit_kwargs={"callbacks": callbacks},
            max_trials=2,
            options={"min_updates": 1, "fresh": True},
        )
"""


def run(folder, *arguments):
    """Run a command in a folder, with a storage in another one.

    Returns what it printed, and its exit code.
    """
    done = commands.run(
        *arguments, folder=folder, XDG_DATA_HOME=str(folder.parent / "data")
    )
    return done.stdout + done.stderr, done.returncode


def hashes(folder):
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.iterdir()
        if file.is_file()
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder in which the program has trained.

    Cache, weights and log of that training are there.
    """
    folder = tmp_path_factory.mktemp("user") / "program"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    output, status = run(folder, sys.executable, "train.py", "plain")
    assert status == 0, output
    return folder


@pytest.mark.parametrize(
    ("how", "text"),
    [("tune", "trials left out SaveBest, CSVLogger"), ("fails", "UserCodeError")],
)
def test_a_tune_that_ends_or_fails_leaves_them(trained, how, text):
    before = hashes(trained)
    output, status = run(trained, sys.executable, "train.py", how)
    assert (status == 0) == (how == "tune"), output
    assert text in " ".join(output.split())
    assert hashes(trained) == before


def test_a_tune_that_is_killed_leaves_them(trained, monkeypatch):
    before = hashes(trained)
    monkeypatch.setenv("XDG_DATA_HOME", str(trained.parent / "data"))
    command = [sys.executable, "train.py", "tune"]
    ends = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=trained, text=True, **ends) as process:
        assert any("tuning batch_size" in line for line in process.stdout), (
            "it was killed before a trial began"
        )
        process.kill()
    assert hashes(trained) == before


def test_a_cache_that_is_missing_is_not_filled(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    output, status = run(tmp_path, sys.executable, "train.py", "tune")
    assert status != 0
    assert "fill it once" in output
    assert list(hashes(tmp_path)) == ["train.py"]


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ('os.environ["KERAS_BACKEND"] = "jax"', "set backend to jax"),
        ('os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"', "export TF_ENABLE_ONEDNN_OPTS=0"),
        (
            'from absl import flags; flags.DEFINE_bool("fast", True, ""); flags.FLAGS.fast',
            "flags.FLAGS([''])",
        ),
        (
            'open("pictures/labels.csv")',
            "Relative paths start from the working folder, ",
        ),
    ],
)
def test_what_a_module_sets_or_opens_when_it_is_imported_is_said(
    setting, told, tmp_path
):
    (tmp_path / "train.py").write_text(
        f"import os\n{setting}\ndef build_model():\n    pass\ndef data(batch_size):\n    pass\n"
    )
    (tmp_path / "tune.yaml").write_text(
        "build_model: train.py:build_model\ndata: train.py:data\nbackend: tensorflow\n"
    )
    output, status = run(tmp_path, commands.AUTOFIT, "tune", "tune.yaml", "--quiet")
    assert status in (1, 2)
    assert told in output
