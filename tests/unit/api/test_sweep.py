"""The loop over the cells of a sweep, its parts, and when it is saved."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

import autofit
from autofit.api import sweep as module
from autofit.cli import app
from autofit.errors import StorageError, UsageError, UserCodeError
from autofit.storage import result_files

RESULT = Path(__file__).parents[2] / "data" / "pinned" / "result.json"


def build_model(width=8):
    """Not called."""


def make_data(batch_size):
    """Not called."""


@pytest.fixture
def asked(monkeypatch):
    """Widths of the cells that were tuned, each with the option `fresh`.

    Width 99 has no storage and 13 fails.
    """
    record = result_files.load(RESULT)
    asked = []

    def run_tune(workload, settings, progress):
        width = workload.model_kwargs["width"]
        asked.append((width, settings.options.fresh))
        if width == 99:
            raise StorageError("the disk is full")
        if width == 13:
            raise UserCodeError("while building the model", "ValueError: unlucky")
        return record

    monkeypatch.setattr(module, "run_tune", run_tune)
    return asked


def sweep(widths, **arguments):
    return autofit.sweep(
        build_model,
        make_data,
        {"model_kwargs.width": widths},
        **{"progress": False, **arguments},
    )


def test_a_sweep_is_saved_after_each_cell(asked):
    saved = []
    result = sweep([8, 13, 16], options={"fresh": True}, save=saved.append)
    assert asked == [(8, True), (13, True), (16, True)]
    assert [cell.outcome for cell in result.cells] == ["ok", "failed", "ok"]
    assert [cell.outcome for cell in saved[0].cells] == ["ok", "waiting", "waiting"]
    assert saved[-1] == result


def test_an_error_that_every_cell_would_have_ends_the_sweep_and_keeps_what_ended(asked):
    saved = []
    with pytest.raises(StorageError):
        sweep([8, 16, 99, 32], save=saved.append)
    assert [width for width, *_ in asked] == [8, 16, 99]
    assert [cell.outcome for cell in saved[-1].cells] == [
        "ok",
        "ok",
        "waiting",
        "waiting",
    ]


def test_the_parts_of_a_sweep_are_all_of_it(asked):
    parts = [sweep(list(range(100, 107)), only=f"{k}/3") for k in (1, 2, 3)]
    widths = [
        [cell.values["model_kwargs.width"] for cell in part.cells] for part in parts
    ]
    assert widths == [[100, 103, 106], [101, 104], [102, 105]]
    assert parts[1].title == "sweep, part 2/3"


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        *(({"only": wrong}, "only") for wrong in ("0/12", "13/12", "1/2/3")),
        ({"fresh": True}, "fresh"),
        ({"executor": "rays"}, "executor"),
        ({"ship": "."}, "ship"),
        ({"host_labels": {"region": "eu"}}, "host_labels"),
    ],
)
def test_an_argument_that_is_wrong_is_one_clear_error(asked, arguments, key):
    with pytest.raises(UsageError) as raised:
        sweep([8, 16], save=asked.append, **arguments)
    assert (raised.value.key, asked) == (key, [])


def test_the_command_writes_a_file_for_each_part(asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(
        "def build_model(width=8):\n    pass\n\n\ndef data(batch_size):\n    pass\n"
    )
    text = (
        "build_model: model.py:build_model\ndata: model.py:data\nmatrix: {model_kwargs.width: [4, "
        "8, 16]}\n"
    )
    (tmp_path / "sweep.yaml").write_text(text)
    done = CliRunner().invoke(
        app, ["sweep", "sweep.yaml", "--only", "3/3", "--quiet", "--fresh"]
    )
    assert (done.exit_code, asked) == (0, [(16, True)]), done.output
    assert {path.name for path in tmp_path.glob("*.[jc]s*")} == {
        "sweep-3-of-3.json",
        "sweep-3-of-3.csv",
    }
