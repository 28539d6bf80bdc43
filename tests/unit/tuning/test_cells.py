"""The cells of a sweep, and the files and tables made from them."""

import csv
import io

import pytest
from rich.console import Console
from typer.testing import CliRunner

from autofit.cli import app
from autofit.errors import StorageError, UsageError, UserCodeError
from autofit.records.result import SweepRecord, TuneRecord
from autofit.report import columns
from autofit.report.console.tables import sweep_table
from autofit.storage import result_files
from autofit.tuning.cells import CellRequest, tuned
from autofit.tuning.engine import tune
from autofit.tuning.settings import TuneSettings
from autofit.workload.workload import Workload
from tests.fakes import MIB, FakeLauncher, collect, make_request


def cell(**model_kwargs):
    values = {f"model_kwargs.{name}": value for name, value in model_kwargs.items()}
    return CellRequest(values, Workload(len, len, model_kwargs=model_kwargs), TuneSettings())


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    return collect(tune, make_request(tmp_path_factory.mktemp("tune"), device_bytes=150 * MIB), FakeLauncher())[1]


@pytest.fixture(scope="module")
def swept(record, tmp_path_factory):
    """A sweep with a cell of each kind."""

    def tune_cell(cell):
        if cell.workload.model_kwargs["width"] == 16:
            raise UserCodeError("while building the model", "Traceback\nValueError: too wide")
        if cell.workload.model_kwargs["width"] == 32:
            collect(tune, make_request(tmp_path_factory.mktemp("no"), device_bytes=5 * MIB), FakeLauncher())
        return record

    cells = tuple(tuned(tune_cell, cell(width=width)) for width in (8, 16, 32))
    return SweepRecord(title="sweep.yaml", cells=cells, machine=record.machine, seconds=9.0, started_at=record.started_at)


def test_a_cell_that_fails_or_does_not_fit_is_a_row(swept, record):
    cells = swept.cells
    assert [cell.outcome for cell in cells] == ["ok", "failed", "does not fit"]
    assert cells[0].tune == record
    assert "too wide" in cells[1].problem
    assert cells[2].tune.needed_bytes == 5 * MIB


def test_an_error_that_every_cell_would_have_is_raised():
    def tune_cell(cell):
        raise StorageError("the disk is full")

    with pytest.raises(StorageError):
        tuned(tune_cell, cell(width=8))


def test_a_sweep_is_saved_read_and_put_into_a_table(swept, tmp_path):
    result_files.save_sweep(swept, tmp_path / "sweep.json", columns.as_csv(swept))
    assert result_files.load(tmp_path / "sweep.json") == swept
    rows = list(csv.DictReader(io.StringIO((tmp_path / "sweep.csv").read_text())))
    assert [(row["model_kwargs.width"], row["outcome"]) for row in rows] == [
        ("8", "ok"), ("16", "failed"), ("32", "does not fit")
    ]  # fmt: skip  # one item a line would be longer, not clearer
    assert int(rows[0]["batch_size"]) == swept.cells[0].tune.config.batch_size
    assert float(rows[0]["samples_per_second"]) == swept.cells[0].tune.samples_per_second
    assert rows[2]["problem"].startswith("nothing fits: ")
    console = Console(width=80, file=io.StringIO(), highlight=False)
    console.print(sweep_table(swept))
    text = console.file.getvalue()
    assert all(len(line) <= 80 for line in text.splitlines())
    for part in (
        "width",
        str(swept.cells[0].tune.config),
        "does not fit",
        "too wide",
        "3 cells: 1 ok, 1 does not fit, 1 failed",
    ):
        assert part in text
    with pytest.raises(UsageError, match=r"sweep\.json: .* autofit show"):
        result_files.answered(swept, tmp_path / "sweep.json")


def test_a_saved_sweep_is_shown_as_its_table_and_a_result_as_itself(swept, record, tmp_path):
    result_files.save_sweep(swept, tmp_path / "sweep.json", columns.as_csv(swept))
    done = CliRunner().invoke(app, ["show", str(tmp_path / "sweep.json")])
    assert done.exit_code == 0, done.output
    console = Console(width=80, file=io.StringIO(), highlight=False)
    console.print(sweep_table(swept))
    assert done.stdout == console.file.getvalue()
    result_files.save(record, tmp_path / "result.json")
    assert "To train with" in CliRunner().invoke(app, ["show", str(tmp_path / "result.json")]).stdout
    result_files.save(swept.cells[2].tune, tmp_path / "none.json")
    refused = CliRunner().invoke(app, ["show", str(tmp_path / "none.json")])
    assert refused.exit_code == 2
    assert "none.json: " in refused.stderr
    assert "5.00 MiB" in refused.stderr


def test_a_result_is_read_as_one_and_damage_is_said(record, tmp_path):
    result_files.save(record, tmp_path / "result.json")
    assert isinstance(result_files.load(tmp_path / "result.json"), TuneRecord)
    (tmp_path / "broken.json").write_text('{"version": 2, "cells": [{}]}')
    with pytest.raises(UsageError, match=r"broken\.json: "):
        result_files.load(tmp_path / "broken.json")


@pytest.mark.parametrize(
    ("axes", "names"),
    [
        (("model_kwargs.width", "device_memory"), ["width", "device_memory"]),
        (("model_kwargs.size", "data_kwargs.size"), ["model_kwargs.size", "data_kwargs.size"]),
        (("model_kwargs.pixels, data_kwargs.pixels",), ["pixels"]),
        (("model_kwargs.width, data_kwargs.size",), ["width = size"]),
    ],
)
def test_axes_are_called_by_their_last_part_where_that_tells_them_apart(axes, names):
    assert list(columns.short_names(axes).values()) == names
