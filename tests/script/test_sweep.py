"""A sweep over the arguments of a script, and a tune of one whose queue has no effect."""

import json

import pytest

from tests.commands import AUTOFIT, run
from tests.script.scripts import HEAD

pytest.importorskip("tensorflow")

WIDTHS = HEAD.replace(
    "import keras\n", "import sys\nimport keras\n\nWIDTH = int(sys.argv[1])\n"
).replace("Dense(1)]", "Dense(WIDTH), keras.layers.Dense(1)]")


def test_each_cell_runs_the_script_with_its_arguments(tmp_path):
    (tmp_path / "train.py").write_text(WIDTHS + "model.fit(x, y, batch_size=32)\n")
    (tmp_path / "sweep.yaml").write_text(
        "script: train.py\nmax_trials: 1\nspace: {batch_size: [32]}\nstorage: trials.db\n"
        "matrix: {arguments: [['4'], ['16']]}\n"
    )
    done = run(AUTOFIT, "sweep", "sweep.yaml", "--quiet", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    cells = json.loads((tmp_path / "sweep.json").read_text())["cells"]
    counts = [cell["tune"]["description"]["parameter_count"] for cell in cells]
    # weights and biases of both layers
    assert counts == [8 * 4 + 4 + 4 + 1, 8 * 16 + 16 + 16 + 1]


def test_a_queue_without_effect_keeps_the_length_that_the_script_gives_it(tmp_path):
    (tmp_path / "train.py").write_text(
        HEAD
        + "WORKERS = 1\nQUEUE = 7\n\nclass Data(keras.utils.PyDataset):\n"
        + "    def __init__(self, batch_size, **kwargs):\n"
        + "        super().__init__(**kwargs)\n        self.batch_size = batch_size\n\n"
        + "    def __len__(self):\n        return 512 // self.batch_size\n\n"
        + "    def __getitem__(self, i):\n"
        + "        rows = slice(i * self.batch_size, (i + 1) * self.batch_size)\n"
        + "        return x[rows], y[rows]\n\n"
        + "model.fit(Data(32, workers=WORKERS, max_queue_size=QUEUE))\n"
    )
    (tmp_path / "tune.yaml").write_text(
        "script: train.py\nmax_trials: 2\nstorage: trials.db\n"
        "space: {batch_size: [32], workers: [1, 2], max_queue_size: [7], "
        "use_multiprocessing: [false], steps_per_execution: [1]}\n"
    )
    done = run(AUTOFIT, "tune", "tune.yaml", "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    trials = json.loads(done.stdout)["trials"]
    assert {trial["config"]["workers"] for trial in trials} == {1, 2}
    assert {trial["measurement"]["outcome"] for trial in trials} == {"ok"}


def test_a_question_about_a_script_is_answered_by_trials_that_its_tune_goes_on_with(
    tmp_path,
):
    (tmp_path / "train.py").write_text(HEAD + "model.fit(x, y, batch_size=8)\n")
    options = ("--json", "--storage", "trials.db")
    asked = run(AUTOFIT, "why", "train.py", *options, folder=tmp_path)
    assert asked.returncode == 0, asked.stderr
    record = json.loads(asked.stdout)
    parts = record["parts"]
    assert record["seconds"] == pytest.approx(sum(parts.values()) - parts["first_step"])
    assert record["config"]["batch_size"] == 8
    assert 1 <= record["trials"] <= 4
    tuned = run(AUTOFIT, "tune", "train.py", *options, folder=tmp_path)
    assert tuned.returncode == 0, tuned.stderr
    assert "reusing" in tuned.stderr
    assert "reusing" not in asked.stderr
