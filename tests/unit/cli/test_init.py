"""`autofit init` finds the functions of a file without running it, and writes a file that is valid."""

import re
import resource

import pytest
import yaml
from typer.testing import CliRunner

from autofit.api.config import load
from autofit.cli import app

RUN = CliRunner()
PROGRAM = """
import nowhere

raise SystemExit("this file is not run")

class Photos(keras.utils.PyDataset):
    def __init__(self, folder, batch_size=32, **kwargs):
        pass

def load_data(path):
    return path

def validation_data(batch_size):
    pass

def build_model(width, depth=2):
    model = make()
    model.compile("adam", "mse")
    return model

def train():
    model = build_model(3)
    model.compile("sgd")
    model.fit(Photos("x"))
"""


def test_it_chooses_functions_and_writes_a_valid_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(PROGRAM)
    done = RUN.invoke(app, ["init", "src/train.py"])
    assert (done.exit_code, done.stderr) == (0, "")
    lines = [
        "build_model: build_model in line 16",
        "data: Photos in line 6",
        "validation: validation_data in line 13",
    ]
    assert done.stdout.splitlines()[:3] == lines
    text = (tmp_path / "tune.yaml").read_text()
    assert yaml.safe_load(text) == {
        "build_model": "src/train.py:build_model",
        "data": "src/train.py:Photos",
        "validation": "src/train.py:validation_data",
    }
    defaults = re.findall(
        r"^# ((?:fit_kwargs|space|baseline|batch_size|\w+_memory|max_seconds): .*)",
        text,
        re.MULTILINE,
    )
    assert len(defaults) == 7
    (tmp_path / "all.yaml").write_text("\n".join([text, *defaults]))
    assert load.load("all.yaml")["max_seconds"] is None


@pytest.mark.parametrize(
    "program", ["def f(x):\n    pass\n", "def my_model():\n    pass\n", "def f(:\n", None, PROGRAM]
)
def test_what_cannot_be_written_is_an_error_and_no_file_is_overwritten(
    tmp_path, monkeypatch, program
):
    monkeypatch.chdir(tmp_path)
    if program is not None:
        (tmp_path / "train.py").write_text(program)
    if program is PROGRAM:
        (tmp_path / "tune.yaml").write_text("mine: 1\n")
    assert RUN.invoke(app, ["init", "train.py"]).exit_code == 2
    assert [file.read_text() for file in tmp_path.glob("*.yaml")] == (
        ["mine: 1\n"] if program is PROGRAM else []
    )


def test_a_full_disk_leaves_no_file_that_would_be_in_the_way(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(PROGRAM)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        done = RUN.invoke(app, ["init", "train.py"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (done.exit_code, "tune.yaml cannot be written" in done.output) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
