"""The commands in this process: files, schemas and past tunes; no trial is run."""

import json
import os
import re
import sys
from pathlib import Path

import jsonschema
import pytest
import typer
import yaml
from typer.testing import CliRunner

from autofit import api
from autofit.cli import app
from autofit.cli.common import reporting_errors
from autofit.storage import result_files
from tests.fakes import FakeLauncher, collect, make_request, tune

RUN = CliRunner()
CONFIGS = sorted((Path(__file__).resolve().parents[3] / "configs").glob("*.yaml"))
MODEL = "import json\n\ndef build_model(width=8):\n    pass\n\n\ndef Photos(batch_size, folder='x'):\n    pass\n"
DATA = "data: model.py:Photos\n"
GOOD = f"build_model: model.py:build_model\n{DATA}storage: trials.db\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for module in ("model", "broken"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


MALFORMED = {
    "wrong type": (GOOD + "max_trials: many\n", "tune.yaml:4:1: max_trials: 'many'"),
    "unknown key": (GOOD + "colour: red\n", "tune.yaml:4:1: colour: "),
    "misspelt key": (GOOD + "max_trails: 3\n", "tune.yaml:4:1: max_trails: "),
    "misspelt knob": (GOOD + "space: {batchsize: [8]}\n", "tune.yaml:4:9: space.batchsize: "),
    "duplicate key": (GOOD + "data: model.py:Photos\n", "tune.yaml:4:1: data: duplicate key, first in line 2"),
    "tab": (GOOD + "space:\n\tbatch_size: [8]\n", "tune.yaml:5:1: is not YAML: "),
    "missing key": ("data: model.py:Photos\n", "tune.yaml:1:1: build_model: is missing"),
    "missing file": ("build_model: no.py:f\n" + DATA, "tune.yaml:1:1: build_model: 'no.py:f': "),
    "missing function": ("build_model: model.py:build\n" + DATA, "tune.yaml:1:1: build_model: 'model.py:build': "),
    "no reference": ("build_model: model.py\n" + DATA, "tune.yaml:1:1: build_model: 'model.py' "),
    "wrong units": (GOOD + "host_memory: 6 gigs\n", "tune.yaml:4:1: host_memory: '6 gigs' "),
    "too much": (GOOD + "device_memory: 150%\n", "tune.yaml:4:1: device_memory: '150%' "),
    "negative": (GOOD + "max_seconds: -1\n", "tune.yaml:4:1: max_seconds: -1 "),
    "upside down": (GOOD + "space:\n  batch_size: {min: 9, max: 8}\n", "tune.yaml:5:3: space.batch_size: "),
    "empty": ("", "tune.yaml:1:1: is empty"),
    "a list": ("- build_model\n", "tune.yaml:1:1: must be a mapping"),
    "unclosed": (GOOD + "space: {batch_size: [8]\n", "tune.yaml:5:1: is not YAML: "),
    "two documents": (GOOD + "---\nmax_trials: 3\n", "tune.yaml:4:1: is not YAML: "),
    "a tag": (GOOD + "data_kwargs: !include x.yaml\n", "tune.yaml:4:14: is not YAML: "),
    "no variable": (GOOD + "max_trials: ${NOT_SET_ANYWHERE}\n", "tune.yaml:4:13: "),
    "a matrix": (GOOD + "matrix: {max_trials: [1]}\n", "tune.yaml:4:1: matrix: "),
    "binary": (b"\x7fELF\x02\x01\x01\x00\xff\xfe", "tune.yaml:1: "),
}


@pytest.mark.parametrize("command", ["tune", "estimate"])
@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_file_exits_with_2_and_one_message_with_the_position(folder, case, command):
    text, expected = MALFORMED[case]
    (folder / "tune.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    done = RUN.invoke(app, [command, "tune.yaml"])
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith("autofit: tune.yaml")
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1
    assert len(done.stderr) < 700


def test_check_prints_its_findings_and_runs_nothing(folder):
    (folder / "tune.yaml").write_text(GOOD + "model_kwargs: {width: 4}\nhost_memory: 1GiB\n")
    done = RUN.invoke(app, ["check", "tune.yaml"])
    assert done.exit_code == 0, done.output
    for expected in ("build_model(width=4)", "Photos takes batch_size", "1.00 GiB of ", "none", "sqlite:///trials.db"):
        assert expected in done.stdout
    assert not (folder / "trials.db").exists()


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        ("model_kwargs: {wdith: 4}\n", 2, "tune.yaml:4:1: model_kwargs: build_model(width=8) "),
        ("data_kwargs: {foldr: 4}\n", 2, "tune.yaml:4:1: data_kwargs: Photos(batch_size, folder='x') "),
        ("space: {workers: [1, 2]}\n", 2, "tune.yaml:4:9: space.workers: "),
        ("space: {prefetch: [1, 2]}\n", 2, "tune.yaml:4:9: space.prefetch: "),
        ("host_memory: 900TiB\n", 2, "tune.yaml:4:1: host_memory: 900TiB "),
        ("device: gpu:9\n", 2, "tune.yaml:4:1: device: 'gpu:9' "),
        ("validation: model.py:json\n", 2, "tune.yaml:4:1: validation: 'model.py:json': "),
        ("validation: broken.py:f\n", 1, "ZeroDivisionError"),
        ("data: twice\n", 2, "duplicate key"),
    ],
)
def test_check_reports_what_would_fail(folder, text, code, expected):
    (folder / "broken.py").write_text("def f():\n    pass\n\n\n1 / 0\n")
    (folder / "tune.yaml").write_text(GOOD + text)
    done = RUN.invoke(app, ["check", "tune.yaml"])
    assert done.exit_code == code
    assert expected in done.stderr
    assert "autofit/" not in done.stderr.replace(str(folder), "")


def test_check_covers_every_cell_of_a_sweep(folder):
    (folder / "sweep.yaml").write_text(GOOD + "matrix: {model_kwargs.width: [4, 8]}\n")
    done = RUN.invoke(app, ["check", "sweep.yaml"])
    assert done.exit_code == 0, done.output
    assert re.findall(r"cell \d of 2: width \d", done.stdout) == ["cell 1 of 2: width 4", "cell 2 of 2: width 8"]


def test_check_hides_the_gpu_only_while_it_imports_modules(folder, monkeypatch):
    (folder / "model.py").write_text("import os\n\nSEEN = os.environ.pop('CUDA_VISIBLE_DEVICES')\n" + MODEL)
    (folder / "sweep.yaml").write_text(GOOD + "matrix: {model_kwargs.width: [4, 8]}\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert RUN.invoke(app, ["check", "sweep.yaml"]).exit_code == 0
    assert sys.modules["model"].SEEN == ""
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"


def test_the_schema_accepts_valid_files_and_rejects_others(folder):
    schema = json.loads(RUN.invoke(app, ["schema"]).stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    undescribed = [key for key, field in schema["properties"].items() if len(field["description"]) < 10]
    assert undescribed == []
    for path in CONFIGS:
        validator.validate(yaml.safe_load(path.read_text()))
    for text in ("max_trials: 2", "x-own: 3", "matrix: {model_kwargs.width: [1]}", "host_memory: 1"):
        validator.validate(yaml.safe_load(GOOD + text))
    for text in (
        "max_trails: 3",
        "max_trials: many",
        "space: {wrokers: [1]}",
        "device: abacus",
        "baseline: {batch_size: 0}",
    ):
        with pytest.raises(jsonschema.ValidationError):
            validator.validate(yaml.safe_load(GOOD + text))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["sweep", "tune.yaml"], "has no `matrix:`"),
        (["sweep", "sweep.yaml", "--only", "3/2"], "--only: '3/2' is not allowed"),
        (["sweep", "sweep.yaml", "--on", "ray", "--ship", "no/such"], "--ship: the folder "),
        (["sweep", "sweep.yaml", "--output", "no/such.json"], "--output: the folder no does not exist"),
        (["sweep", "sweep.yaml", "--output", "table.csv"], "table.json"),
        (["sweep", "sweep.yaml", "--launch", "rocket"], "autofit: --launch: 'rocket' "),
        (["tune", "tune.yaml", "--launch", "rocket"], "autofit: --launch: 'rocket' "),
        (["report", "tune.yaml"], "autofit: tune.yaml: "),
        (["report", "none.json"], "autofit: none.json: "),
        (["show", "tune.yaml"], "autofit: tune.yaml: "),
        (["tune", "tune.yaml", "--storage", "nosuchdb://x"], "nosuchdb://x"),
        (["tune", "tune.yaml", "--output", "no/such/result.json"], "--output: the folder no/such does not exist"),
        (["estimate", "tune.yaml", "--batch-size", "32,many"], "--batch-size: '32,many'"),
        (["estimate", "tune.yaml", "--batch-size", "0"], "autofit: --batch-size: [0]"),
        (["tune", "tune.yaml", "--batch-size", "many"], "autofit: --batch-size: 'many' is not allowed: write tune, keep"),
        (["tune", "sizes.yaml", "--batch-size", "32"], "autofit: --batch-size: 32 is given, but baseline has 16"),
        (
            ["tune", "sizes.yaml", "--batch-size", "0", "--launch", "x"],
            "autofit: 2 errors:\n  --batch-size: 0 is not allowed",
        ),
    ],
)
def test_wrong_calls_exit_with_2_and_a_message(folder, arguments, expected):
    (folder / "tune.yaml").write_text(GOOD)
    (folder / "sweep.yaml").write_text(GOOD + "matrix: {model_kwargs.width: [4, 8]}\n")
    (folder / "sizes.yaml").write_text(GOOD + "baseline: {batch_size: 16}\n")
    done = RUN.invoke(app, arguments)
    assert done.exit_code == 2
    assert expected in done.stderr


@pytest.mark.parametrize(("option", "batch_size"), [("64", 64), ("keep", "keep"), (None, "largest")])
def test_the_batch_size_of_the_command_line_replaces_that_of_the_file(folder, option, batch_size, monkeypatch):
    (folder / "tune.yaml").write_text(GOOD + "batch_size: largest\n")
    asked = []
    monkeypatch.setattr(api, "tune", lambda **arguments: asked.append(arguments["batch_size"]) or sys.exit(0))
    RUN.invoke(app, ["tune", "tune.yaml", *(["--batch-size", option] if option else [])])
    assert asked == [batch_size]


def test_there_are_eleven_commands():
    names = [command.callback.__name__ for command in app.registered_commands]
    expected = ["init", "tune", "sweep", "check", "estimate", "report", "kwargs", "show", "schema", "doctor", "verify"]
    assert names == expected


@pytest.mark.parametrize(
    "command", [[], *([command.name or command.callback.__name__] for command in app.registered_commands)]
)
def test_every_command_has_a_help(command):
    done = RUN.invoke(app, [*command, "--help"], env={"COLUMNS": "80"})
    assert done.exit_code == 0
    assert "Usage: " in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_result_that_failed_in_training(folder):
    record = collect(tune, request := make_request(folder), FakeLauncher())[1]
    result_files.save(record, "result.json")
    command = ["show", "result.json", "--failed", "host", "--storage"]
    done = RUN.invoke(app, [*command, f"journal:{folder / 'trials.log'}"])
    assert (done.exit_code, done.stderr) == (0, "")
    assert str(record.config) in done.stdout
    assert collect(tune, request, FakeLauncher())[1].config != record.config
    done = RUN.invoke(app, [*command, "none.db"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("autofit: --storage: sqlite:///none.db does not have the tune autofit-")


def test_a_command_imports_from_the_working_directory(folder, monkeypatch):
    (folder / "named.py").write_text(MODEL)
    monkeypatch.delitem(sys.modules, "named", raising=False)
    (folder / "tune.yaml").write_text("build_model: named:build_model\ndata: named:Photos\nstorage: trials.db\n")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", ".", str(folder))])
    done = RUN.invoke(app, ["check", "tune.yaml"])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(("kept", "facts"), [(None, []), (lambda: "2 finished trials are kept", ["2 finished", "--fresh"])])
def test_ctrl_c_exits_with_130_and_names_what_is_kept(kept, facts, capsys):
    with pytest.raises(typer.Exit) as ended, reporting_errors(kept):
        raise KeyboardInterrupt
    assert ended.value.exit_code == 130
    message = capsys.readouterr().err
    assert message.startswith("\nInterrupted; ")
    assert all(fact in message for fact in facts)
    assert ("--fresh" in message) == (kept is not None)
