"""The commands in this process: files, schemas and past tunes; no trial is run."""

import json
import os
import sys
from pathlib import Path

import jsonschema
import pytest
import typer
import yaml
from typer.testing import CliRunner

from autofit.api.result import Result
from autofit.cli import app, commands
from autofit.cli.common import reporting_errors
from tests.commands import PACKAGE

RUN = CliRunner()
RESULT = Path(__file__).parents[2] / "data" / "pinned" / "result.json"
CONFIGS = sorted((Path(__file__).resolve().parents[3] / "configs").glob("*.yaml"))
MODEL = (
    "import json\n\ndef build_model(width=8):\n    pass\n\n\ndef Photos(batch_size, folder='x'):\n"
    "    pass\n"
)
DATA = "data: model.py:Photos\n"
GOOD = f"build_model: model.py:build_model\n{DATA}storage: trials.db\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "path", [entry for entry in sys.path if entry not in ("", ".")]
    )
    for module in ("model", "broken", "late"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


def test_check_prints_its_findings_and_runs_nothing(folder):
    modules = GOOD.replace(
        "model.py:", "model:"
    )  # in the working directory, which the command appends to the path
    (folder / "tune.yaml").write_text(
        modules + "model_kwargs: {width: 4}\nhost_memory: 1GiB\n"
    )
    done = RUN.invoke(app, ["check", "tune.yaml"])
    assert done.exit_code == 0, done.output
    for expected in ("build_model(width=4)", "Photos takes batch_size", "1.00 GiB of "):
        assert expected in done.stdout
    assert not (folder / "trials.db").exists()


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        ("max_trails: 3\n", 2, "autofit: tune.yaml:4:1: max_trails: "),
        ("model_kwargs: {wdith: 4}\n", 2, "model_kwargs: build_model(width=8) "),
        ("space: {workers: [1, 2]}\n", 2, "autofit: tune.yaml:4:9: space.workers: "),
        ("host_memory: 900TiB\n", 2, "autofit: tune.yaml:4:1: host_memory: 900TiB "),
        ("device: gpu:9\n", 2, "autofit: tune.yaml:4:1: device: 'gpu:9' "),
        ("validation: broken.py:f\n", 1, "ZeroDivisionError"),
        (
            "validation: late.py:f\n",
            2,
            "your module sets KERAS_BACKEND=openvino when it is imported",
        ),
    ],
)
def test_check_reports_what_would_fail(folder, text, code, expected):
    (folder / "broken.py").write_text("def f():\n    pass\n\n\n1 / 0\n")
    (folder / "late.py").write_text(
        "import os\n\nos.environ['KERAS_BACKEND'] = 'openvino'\nimport broken\nf = 1\n"
    )
    (folder / "tune.yaml").write_text(GOOD + text)
    done = RUN.invoke(app, ["check", "tune.yaml"])
    assert (done.exit_code, done.stdout) == (code, "")
    assert expected in done.stderr
    assert PACKAGE not in done.stderr


def test_check_takes_a_knob_of_the_model_for_none_of_the_data(folder):
    (folder / "tune.yaml").write_text(GOOD + "space: {steps_per_execution: [1, 8]}\n")

    assert RUN.invoke(app, ["check", "tune.yaml"]).exit_code == 0


def test_check_covers_every_cell_and_hides_the_gpu_only_while_it_imports_modules(
    folder, monkeypatch
):
    (folder / "model.py").write_text(
        "import os\n\nSEEN = os.environ.pop('CUDA_VISIBLE_DEVICES')\n" + MODEL
    )
    (folder / "sweep.yaml").write_text(GOOD + "matrix: {model_kwargs.width: [4, 8]}\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    done = RUN.invoke(app, ["check", "sweep.yaml"])
    assert done.exit_code == 0, done.output
    assert all(
        f"cell {n} of 2: width {width}" in done.stdout for n, width in ((1, 4), (2, 8))
    )
    assert (sys.modules["model"].SEEN, os.environ["CUDA_VISIBLE_DEVICES"]) == ("", "0")


def without_texts(schema):
    """A schema without descriptions, which old versions of pydantic leave out."""
    if isinstance(schema, list):
        return [without_texts(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: without_texts(part)
        for name, part in schema.items()
        if name != "description" or isinstance(part, dict)
    }


@pytest.mark.parametrize("command", ["tune", "why"])
def test_with_json_an_error_is_the_only_document_and_has_a_schema(folder, command):
    schema = json.loads(RUN.invoke(app, ["schema", command]).stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    shipped = CONFIGS[0].with_name(f"{command}.schema.json")
    # `autofit schema tune > configs/tune.schema.json` writes it again
    assert without_texts(json.loads(shipped.read_text())) == without_texts(schema)
    validator = jsonschema.Draft202012Validator(schema)
    (folder / "tune.yaml").write_text(GOOD + "max_trails: 3\n")
    for given, code in (("tune.yaml", 2), ("none.py", 2)):
        done = RUN.invoke(app, [command, given, "--json"])
        assert done.exit_code == code
        document = json.loads(done.stdout)
        validator.validate(document)
        assert document["problem"] in done.stderr
    assert not validator.is_valid({"problem": 3})
    assert not validator.is_valid({})


def test_an_estimate_with_json_says_as_json_what_is_wrong(folder):
    done = RUN.invoke(app, ["estimate", "tune.yaml", "--batch-size", "8;16", "--json"])
    assert done.exit_code == 2
    assert "'8;16' is not allowed" in json.loads(done.stdout)["problem"]


def test_the_seconds_of_a_tune_are_an_option(folder):
    (folder / "tune.yaml").write_text(GOOD)
    done = RUN.invoke(app, ["tune", "tune.yaml", "--max-seconds", "0"])
    assert done.exit_code == 2
    assert "max_seconds" in done.stderr


def test_a_saved_result_is_explained_without_a_trial(folder):
    done = RUN.invoke(app, ["why", str(RESULT), "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    schema = json.loads(RUN.invoke(app, ["schema", "why"]).stdout)
    jsonschema.Draft202012Validator(schema).validate(document)
    parts = document["parts"]
    assert sum(parts.values()) == pytest.approx(
        document["seconds"] + parts["first_step"]
    )
    shown = RUN.invoke(app, ["why", str(RESULT)]).stdout
    assert "an epoch of build_model" in shown
    assert "next:" not in shown
    assert "helps most" in shown or "nothing that was tried" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())
    result = json.loads(RESULT.read_text())
    schema = json.loads(RUN.invoke(app, ["schema", "tune"]).stdout)
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(result)
    del result["bottleneck"]
    assert not validator.is_valid(result)


def test_the_schema_accepts_valid_files_and_rejects_others(folder):
    schema = json.loads(RUN.invoke(app, ["schema"]).stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert all(field["description"] for field in schema["properties"].values())
    # for editors; `autofit schema > configs/autofit.schema.json` writes it again
    shipped = "autofit.schema.json"
    assert json.loads((CONFIGS[0].parent / shipped).read_text()) == schema
    for path in CONFIGS:
        assert path.read_text().startswith(
            f"# yaml-language-server: $schema={shipped}\n"
        )
        validator.validate(yaml.safe_load(path.read_text()))
    for text in (
        "max_trials: 2",
        "x-own: 3",
        "matrix: {model_kwargs.width: [1]}",
        "host_memory: 1",
    ):
        validator.validate(yaml.safe_load(GOOD + text))
    for text in (
        "max_trails: 3",
        "max_trials: many",
        "space: {wrokers: [1]}",
        "device: abacus",
    ):
        with pytest.raises(jsonschema.ValidationError):
            validator.validate(yaml.safe_load(GOOD + text))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("sweep tune.yaml", "tune.yaml:1:1: has no `matrix:`"),
        ("sweep sweep.yaml --on rays", "executor: 'rays'"),
        (
            "sweep sweep.yaml --output no/such.json",
            "--output: the folder no does not exist",
        ),
        (
            "sweep sweep.yaml --output table.csv",
            "table.csv is the name of the CSV file; give the JSON file: table.json",
        ),
        ("report none.json", "none.json: "),
        ("report tune.yaml -o .", "--output: . is a folder"),
        ("show tune.yaml", "tune.yaml: "),
        ("tune tune.yaml --storage nosuchdb://x", "nosuchdb://x"),
        ("estimate tune.yaml --batch-size 32,many", "--batch-size: '32,many'"),
        ("tune tune.yaml --batch-size 0 --launch x", "2 errors:\n  batch_size: 0 "),
    ],
)
def test_wrong_calls_exit_with_2_and_a_message(folder, arguments, expected):
    (folder / "tune.yaml").write_text(GOOD)
    (folder / "sweep.yaml").write_text(GOOD + "matrix: {model_kwargs.width: [4, 8]}\n")
    done = RUN.invoke(app, arguments.split())
    assert done.exit_code == 2
    assert expected in done.stderr


@pytest.mark.parametrize(
    ("option", "batch_size"), [("64", 64), ("keep", "keep"), (None, "largest")]
)
def test_the_batch_size_of_the_command_line_replaces_that_of_the_file(
    folder, option, batch_size, monkeypatch
):
    (folder / "tune.yaml").write_text(GOOD + "batch_size: largest\n")
    asked = []

    def tune(arguments, progress):
        asked.append(arguments["batch_size"])
        sys.exit(0)

    monkeypatch.setattr(commands, "tune_arguments", tune)
    RUN.invoke(
        app, ["tune", "tune.yaml", *(["--batch-size", option] if option else [])]
    )
    assert asked == [batch_size]


def test_every_command_has_a_help():
    for command in (
        [],
        *([command.callback.__name__] for command in app.registered_commands),
    ):
        assert "Usage: " in RUN.invoke(app, [*command, "--help"]).stdout


def test_a_shell_completes_the_options_of_commands():
    asked = {
        "_AUTOFIT_COMPLETE": "complete_bash",
        "COMP_WORDS": "autofit tune --batch",
        "COMP_CWORD": "2",
    }
    assert RUN.invoke(app, prog_name="autofit", env=asked).stdout == "--batch-size\n"


def test_a_result_that_failed_in_training_is_stored(monkeypatch):
    stored = []
    monkeypatch.setattr(
        Result, "failed", lambda self, *given, same_batch: stored.append(given)
    )
    done = RUN.invoke(
        app, ["show", str(RESULT), "--failed", "host", "--storage", "mine.db"]
    )
    assert (done.exit_code, done.stderr, stored) == (0, "", [("host", "mine.db")])


@pytest.mark.parametrize("resumes", [False, True])
def test_ctrl_c_exits_with_130_and_says_whether_the_command_resumes(resumes, capsys):
    with pytest.raises(typer.Exit) as ended, reporting_errors(resumes=resumes):
        raise KeyboardInterrupt
    assert ended.value.exit_code == 130
    assert ("--fresh" in capsys.readouterr().err) == resumes


@pytest.mark.parametrize("output_format", ["python", "json"])
def test_the_arguments_of_a_result_are_written_in_the_format_that_is_asked_for_only(
    output_format, monkeypatch
):
    monkeypatch.delattr(yaml, "safe_dump")
    done = RUN.invoke(app, ["kwargs", str(RESULT), "--format", output_format])
    assert (done.exit_code, done.stderr) == (0, "")
    assert "batch_size" in done.stdout
