"""`autofit init` finds the functions of a file without running it, and writes a file that is valid."""

import re

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


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_chooses_functions_and_writes_a_valid_file(folder):
    (folder / "src").mkdir()
    (folder / "src" / "train.py").write_text(PROGRAM)
    done = RUN.invoke(app, ["init", "src/train.py"])
    assert (done.exit_code, done.stderr) == (0, "")
    lines = ["build_model: build_model in line 16", "data: Photos in line 6", "validation: validation_data in line 13"]
    assert done.stdout.splitlines()[:3] == lines
    assert "autofit tune tune.yaml" in done.stdout
    text = (folder / "tune.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=autofit.schema.json\n")
    assert "# device_memory: 90%\n" in text
    assert "# fit_kwargs: {}\n" in text
    assert max(map(len, text.splitlines())) <= 90
    assert yaml.safe_load(text) == {
        "build_model": "src/train.py:build_model",
        "model_kwargs": {"width": None},
        "data": "src/train.py:Photos",
        "data_kwargs": {"folder": None},
        "validation": "src/train.py:validation_data",
    }
    assert load.load("tune.yaml")["data_kwargs"] == {"folder": None}
    defaults = re.findall(r"^# ((?:fit_kwargs|space|baseline|batch_size|\w+_memory|max_seconds): .*)", text, re.MULTILINE)
    assert len(defaults) == 7
    (folder / "all.yaml").write_text("\n".join([text, *defaults]))
    assert load.load("all.yaml")["max_seconds"] is None


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("def f(x):\n    pass\n", "looks like build_model, as def build_model() would (functions there: f)"),
        ("def my_model():\n    pass\n", "looks like data, as def make_data(batch_size) would (functions there: my_model)"),
        ("def f(:\n", "train.py cannot be read: "),
        (None, "train.py cannot be read: [Errno 2] No such file or directory"),
        (PROGRAM, "--output: tune.yaml exists and is not overwritten"),
    ],
)  # fmt: skip  # one item a line would be longer, not clearer
def test_what_cannot_be_written_is_an_error(folder, program, told):
    if program is not None:
        (folder / "train.py").write_text(program)
    if program is PROGRAM:
        (folder / "tune.yaml").write_text("mine: 1\n")
    done = RUN.invoke(app, ["init", "train.py"])
    assert done.exit_code == 2
    assert told in done.stderr
    assert [file.read_text() for file in folder.glob("*.yaml")] == (["mine: 1\n"] if program is PROGRAM else [])
