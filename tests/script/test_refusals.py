"""Scripts that cannot be tuned, or would do harm in each trial: one sentence each, and nothing of
the user's changes.
"""

import hashlib
import os
import sys

import pytest

from tests.commands import AUTOFIT, run
from tests.script.scripts import HEAD, PLACES

FIT = "model.fit(x, y, batch_size=32)\n"
SAVE = 'model.save("model.keras")\n'

REFUSED = {
    "writes": (HEAD + SAVE + FIT, "train.py:8 writes model.keras"),
    "deletes": (
        HEAD + 'import os\nos.remove("data.csv")\n' + FIT,
        "train.py:9 deletes data.csv",
    ),
    "replaces from a temporary file": (
        HEAD
        + "import os, tempfile\nfile = tempfile.NamedTemporaryFile(delete=False)\n"
        + 'os.replace(file.name, "data.csv")\n'
        + FIT,
        "to data.csv",
    ),
    "removes a folder": (
        HEAD + 'import shutil\nshutil.rmtree("photos")\n' + FIT,
        "train.py:9 deletes photos",
    ),
    "runs a program": (
        HEAD + 'import os\nos.system("rm -r photos")\n' + FIT,
        "train.py:9 runs the program 'rm -r photos'",
    ),
    "writes in a child": (
        HEAD
        + "import os\nchild = os.fork()\nif not child:\n"
        + '    open("photos/b.txt", "w").close()\n    os._exit(0)\n'
        + "os.waitpid(child, 0)\n"
        + FIT,
        "photos",
    ),
    "downloads": (
        HEAD + "import socket\nsocket.create_connection(('192.0.2.1', 80), 5)\n" + FIT,
        "train.py:9 connects to 192.0.2.1",
    ),
    "asks": (HEAD + 'input("ready?")\n' + FIT, "train.py asks for input"),
    "has a loop of its own": (
        HEAD + "for _ in range(3):\n    model.train_on_batch(x, y)\n",
        "train.py ended without a call of fit (it uses train_on_batch)",
    ),
    "needs arguments": (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--data', required=True)\n"
        "p.parse_args()\n",
        "train.py ended before it called fit (exit code 2); if it needs arguments: autofit tune",
    ),
    "several calls": (
        HEAD + FIT + "model.fit(x, y, batch_size=64)\n",
        "--fit 2: train.py:9, 1 epoch of 8 steps",
    ),
    "two batch sizes": (
        PLACES["batch"][0].replace(
            "ds = ds.shuffle(512).batch(32)\n",
            "a, b = 32, 32\nbatch_a = 32\nbatch_b = 32\n"
            "ds = tf.data.Dataset.zip((ds.map(lambda a, b: a).batch(batch_a), "
            "ds.map(lambda a, b: b).batch(batch_b)))\n",
        ),
        "two datasets are joined whose batches are set at train.py:12 and train.py:13",
    ),
}


def state_of(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_tuned_is_refused_and_nothing_changes(why, tmp_path):
    text, said = REFUSED[why]
    (tmp_path / "photos").mkdir()
    for name in ("data.csv", "photos/a.txt"):
        (tmp_path / name).write_text("mine")
    (tmp_path / "train.py").write_text(text)
    before = state_of(tmp_path)
    done = run(
        AUTOFIT,
        "tune",
        "train.py",
        folder=tmp_path,
        XDG_DATA_HOME=f"{tmp_path}/../share",
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in " ".join(done.stderr.split()), done.stderr
    assert "Traceback" not in done.stderr
    assert state_of(tmp_path) == before


HARMLESS = {
    "callbacks that write": HEAD
    + 'keep = keras.callbacks.ModelCheckpoint("best.keras")\n'
    + 'log = keras.callbacks.CSVLogger("log")\n'
    + 'board = keras.callbacks.TensorBoard("board")\n'
    + 'backup = keras.callbacks.BackupAndRestore("backup")\n'
    + "model.fit(x, y, batch_size=32, callbacks=[keep, log, board, backup])\n",
    "what follows fit": HEAD + FIT + SAVE,
    "try and finally": HEAD + "try:\n    " + FIT + "finally:\n    " + SAVE,
    "a loop": HEAD + "for fold in range(3):\n    " + FIT,
    "a context": HEAD + 'with open("data.csv") as file:\n    ' + FIT,
    "a bare except": HEAD + "try:\n    " + FIT + "except:\n    " + SAVE,
}


@pytest.mark.parametrize("what", HARMLESS)
def test_a_tune_changes_nothing_of_the_users(what, tmp_path):
    (tmp_path / "train.py").write_text(HARMLESS[what])
    for name in ("best.keras", "log", "model.keras", "data.csv"):
        (tmp_path / name).write_text("a week of training")
    (tmp_path / "short.yaml").write_text(
        "script: train.py\nspace: {batch_size: [32, 128], steps_per_execution: [1]}\n"
        "max_trials: 2\nmax_seconds: 60\n"
    )
    before = state_of(tmp_path)
    done = run(
        AUTOFIT,
        "tune",
        "short.yaml",
        folder=tmp_path,
        XDG_DATA_HOME=f"{tmp_path}/../share",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert state_of(tmp_path) == before


TRACKER = """\
import os

def init(project):
    if os.environ.get("WANDB_MODE") != "disabled":
        open("runs", "a").write(project)
"""


def test_a_tracker_is_off_in_trials(tmp_path):
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "wandb.py").write_text(TRACKER)
    (tmp_path / "train.py").write_text(
        HEAD + 'import wandb\n\nwandb.init("photos")\n' + FIT
    )
    (tmp_path / "short.yaml").write_text(
        "script: train.py\nwrites: true\nspace: {batch_size: [32, 128]}\nmax_trials: 2\n"
        "max_seconds: 60\n"
    )
    variables = {
        "XDG_DATA_HOME": str(tmp_path / "share"),
        "PYTHONPATH": os.pathsep.join([str(packages), *sys.path]),
        "WANDB_MODE": None,
    }
    done = run(AUTOFIT, "tune", "short.yaml", folder=tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "runs").exists()
    plain = run(sys.executable, "train.py", folder=tmp_path, **variables)
    assert plain.returncode == 0, plain.stderr
    assert (tmp_path / "runs").read_text() == "photos"


def test_a_script_on_jax_may_compile_before_fit(tmp_path):
    pytest.importorskip("jax")
    compiles = (
        "keras.ops.matmul(keras.ops.ones((300, 300)), keras.ops.ones((300, 300)))\n"
    )
    (tmp_path / "train.py").write_text(HEAD + compiles + FIT)
    (tmp_path / "short.yaml").write_text(
        "script: train.py\nspace: {batch_size: [32, 128]}\nmax_trials: 2\nmax_seconds: 60\n"
    )
    folders = {"XDG_DATA_HOME": str(tmp_path / "share"), "KERAS_BACKEND": "jax"}
    done = run(AUTOFIT, "tune", "short.yaml", folder=tmp_path, **folders)
    assert done.returncode == 0, done.stderr
    assert list(
        tmp_path.glob("share/**/*-cache")
    )  # what JAX compiled stays beside the study


def test_an_error_of_the_script_is_shown_with_its_line(tmp_path):
    (tmp_path / "train.py").write_text(
        "import keras\n\nraise ValueError('no photos')\n"
    )
    done = run(
        AUTOFIT, "tune", "train.py", folder=tmp_path, XDG_DATA_HOME=str(tmp_path)
    )
    assert done.returncode == 1
    assert "ValueError: no photos" in done.stderr
    assert 'train.py", line 3' in done.stderr
    assert "autofit/" not in done.stderr.replace(sys.prefix, "")
