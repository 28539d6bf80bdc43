"""The loop over the cells of a sweep, its parts, and when it is saved."""

import importlib
import io

import pytest
from rich.console import Console
from typer.testing import CliRunner

import autofit
from autofit.cli import app
from autofit.errors import StorageError, UsageError, UserCodeError
from autofit.report.console.progress import Progress
from autofit.tuning.engine import tune
from tests.fakes import FakeLauncher, collect, make_request

MODULE = importlib.import_module("autofit.api.sweep")  # the name `autofit.api.sweep` is the function


def build_model(width=8):
    """Not called."""


def make_data(batch_size):
    """Not called."""


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Widths of the cells that were tuned, each with the option `fresh`; width 99 has no storage and 13 fails."""
    record = collect(tune, make_request(tmp_path), FakeLauncher())[1]
    asked = []

    def run_tune(workload, settings, progress):
        width = workload.model_kwargs["width"]
        asked.append((width, settings.options.fresh))
        if width == 99:
            raise StorageError("the disk is full")
        if width == 13:
            raise UserCodeError("while building the model", "ValueError: unlucky")
        return record

    monkeypatch.setattr(MODULE, "run_tune", run_tune)
    return asked


def sweep(widths, **arguments):
    return autofit.sweep(build_model, make_data, {"model_kwargs.width": widths}, **{"progress": False, **arguments})


def test_cells_follow_each_other_under_their_titles_and_the_sweep_is_saved_after_each(asked):
    saved, shown = [], Console(file=io.StringIO(), force_terminal=True, color_system=None, width=80)
    result = sweep([8, 13, 16], options={"fresh": True}, save=saved.append, progress=Progress(shown))
    assert asked == [(8, True), (13, True), (16, True)]
    assert [cell.outcome for cell in result.cells] == ["ok", "failed", "ok"]
    assert [cell.outcome for cell in saved[0].cells] == ["ok", "waiting", "waiting"]
    assert saved[-1] == result
    lines = [line.split(":")[:3] for line in shown.file.getvalue().splitlines() if line.strip()]
    for number, width, outcome in ((1, 8, "fastest"), (2, 13, "failed"), (3, 16, "fastest")):
        title = [f"cell {number} of 3", f" width {width}"]
        assert lines.index(title) + 1 == lines.index([*title, f" {outcome}"])


def test_an_error_that_every_cell_would_have_ends_the_sweep_and_keeps_what_ended(asked):
    saved = []
    with pytest.raises(StorageError):
        sweep([8, 16, 99, 32], save=saved.append)
    assert [width for width, *_ in asked] == [8, 16, 99]
    assert [cell.outcome for cell in saved[-1].cells] == ["ok", "ok", "waiting", "waiting"]


def test_the_parts_of_a_sweep_are_all_of_it(asked):
    parts = [sweep(list(range(100, 107)), only=f"{k}/3") for k in (1, 2, 3)]
    widths = [[cell.values["model_kwargs.width"] for cell in part.cells] for part in parts]
    assert widths == [[100, 103, 106], [101, 104], [102, 105]]
    assert parts[1].title == "sweep, part 2/3"


@pytest.mark.parametrize(
    ("arguments", "key", "mentioned"),
    [
        *(({"only": wrong}, "only", f"{wrong!r} is not allowed") for wrong in ("0/12", "13/12", "3", "-1/2", "1/2/3")),
        ({"only": "3/12"}, "only", "1/2 to 2/2"),
        ({"fresh": True}, "fresh", "is one of the options; give it in options"),
        ({"executor": "rays"}, "executor", "'rays'"),
        ({"ship": "."}, "ship", "Ray"),
        ({"host_labels": {"region": 3}}, "host_labels", "{'region': 3}"),
        ({"host_labels": {"region": "eu"}}, "host_labels", "Ray"),
        ({"executor": "ray", "device": "gpu:1"}, "device", "Ray chooses"),
    ],
)
def test_an_argument_that_is_wrong_is_one_clear_error(asked, arguments, key, mentioned):
    if "device" in arguments:
        pytest.importorskip("ray")
    saved = []
    with pytest.raises(UsageError) as raised:
        sweep([8, 16], save=saved.append, **arguments)
    assert (raised.value.key, asked, saved) == (key, [], [])
    assert mentioned in raised.value.problem


def test_the_command_names_its_own_options_and_writes_a_file_for_each_part(asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text("def build_model(width=8):\n    pass\n\n\ndef data(batch_size):\n    pass\n")
    text = "build_model: model.py:build_model\ndata: model.py:data\nmatrix: {model_kwargs.width: [4, 8, 16]}\n"
    (tmp_path / "sweep.yaml").write_text(text)
    for option, value in (("--on", "rays"), ("--only", "4/3")):
        done = CliRunner().invoke(app, ["sweep", "sweep.yaml", option, value])
        assert (done.exit_code, done.stderr.partition("; ")[0]) == (2, f"autofit: {option}: {value!r} is not allowed")
    done = CliRunner().invoke(app, ["sweep", "sweep.yaml", "--only", "3/3", "--quiet", "--fresh"])
    assert (done.exit_code, asked) == (0, [(16, True)]), done.output
    assert "sweep-3-of-3.json and sweep-3-of-3.csv" in done.stdout
    assert {path.name for path in tmp_path.glob("*.[jc]s*")} == {"sweep-3-of-3.json", "sweep-3-of-3.csv"}
