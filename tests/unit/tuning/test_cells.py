"""The cells of a sweep on any executor, and the files and tables made from them."""

import csv
import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from autofit.cli import app
from autofit.errors import StorageError, UsageError, UserCodeError
from autofit.records.result import TuneRecord
from autofit.report import columns, wording
from autofit.report.console.tables import sweep_table
from autofit.storage import result_files
from autofit.tuning.cells import CellEnded, CellProgress, CellRequest, tune_cells, tuned
from autofit.tuning.executors.local import LocalExecutor
from autofit.tuning.settings import TuneSettings
from autofit.tuning.tuner import tune
from autofit.workload.workload import Workload
from tests.fakes import MIB, FakeLauncher, collect, make_request


def cell(values, device="auto", **model_kwargs):
    workload = Workload(len, len, model_kwargs=model_kwargs)
    return CellRequest(values, workload, TuneSettings(device=device))


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    return collect(tune, make_request(tmp_path_factory.mktemp("tune"), device_bytes=150 * MIB), FakeLauncher())[1]


@pytest.fixture(scope="module")
def swept(record, tmp_path_factory):
    """A sweep with a cell of each kind."""

    def tune_cell(cell, tell, cancelled):
        if cell.workload.model_kwargs["width"] == 16:
            raise UserCodeError("while building the model", "Traceback\nValueError: too wide")
        if cell.workload.model_kwargs["width"] == 32:
            collect(tune, make_request(tmp_path_factory.mktemp("no"), device_bytes=5 * MIB), FakeLauncher())
        return record

    cells = [cell({"model_kwargs.width": width}, width=width) for width in (8, 16, 32)]
    return list(tune_cells("sweep.yaml", cells, LocalExecutor(tune_cell)))


def test_a_cell_that_fails_or_does_not_fit_is_a_row(swept, record):
    cells = swept[-1].record.cells
    assert [cell.outcome for cell in cells] == ["ok", "failed", "does not fit"]
    assert cells[0].tune == record
    assert "too wide" in cells[1].problem
    assert cells[2].tune.needed_bytes == 11 * MIB
    assert [type(event).__name__ for event in swept] == ["CellProgress", "CellEnded"] * 3
    assert [cell.outcome for cell in swept[1].record.cells] == ["ok", "waiting", "waiting"]


def test_what_no_cell_can_help_ends_the_sweep():
    def tune_cell(cell, tell, cancelled):
        raise StorageError("the disk is full")

    with pytest.raises(StorageError):
        list(tune_cells("s", [cell({"a": 1}), cell({"a": 2})], LocalExecutor(tune_cell)))


class Elsewhere:
    """An executor as a user would write it, on anything that runs functions and returns futures."""

    def __init__(self, tune_cell):
        self.tune_cell, self.pool, self.is_closed = tune_cell, ThreadPoolExecutor(3), False

    def start(self, cells, report):
        return [self.pool.submit(self.run, index, cell, report) for index, cell in enumerate(cells)]

    def run(self, index, cell, report):
        where = f"host{index % 3}"
        report(index, where, "")
        return replace(tuned(self.tune_cell, cell, lambda text: report(index, where, text), None), host=where)

    def close(self):
        self.pool.shutdown()
        self.is_closed = True


def test_an_executor_of_ones_own_gives_the_same_table(swept, record):
    def tune_cell(cell, tell, cancelled):
        tell("tuning it")
        if cell.workload.model_kwargs["width"] == 16:
            raise UserCodeError("while building the model", "Traceback\nValueError: too wide")
        return record

    executor = Elsewhere(tune_cell)
    cells = [cell({"model_kwargs.width": width}, width=width) for width in (8, 16, 32)]
    events = list(tune_cells("sweep.yaml", cells, executor))
    assert executor.is_closed
    ended = [event for event in events if isinstance(event, CellEnded)]
    assert sorted(event.index for event in ended) == [0, 1, 2]
    assert [cell.outcome for cell in ended[-1].record.cells] == ["ok", "failed", "ok"]
    assert [cell.host for cell in ended[-1].record.cells] == ["host0", "host1", "host2"]
    told = [(event.index, event.where, event.doing) for event in events if isinstance(event, CellProgress)]
    assert sorted(told) == sorted((n, f"host{n}", text) for n in range(3) for text in ("", "tuning it"))
    for event in events:  # a cell begins before it goes on, and ends last
        if isinstance(event, CellEnded):
            later = events[events.index(event) + 1 :]
            assert all(other.index != event.index for other in later)


def test_a_sweep_is_saved_read_and_put_into_a_table(swept, tmp_path):
    record = swept[-1].record
    result_files.save_sweep(record, tmp_path / "sweep.json", columns.as_csv(record))
    assert result_files.load(tmp_path / "sweep.json") == record
    rows = list(csv.DictReader(io.StringIO((tmp_path / "sweep.csv").read_text())))
    assert [(row["model_kwargs.width"], row["outcome"]) for row in rows] == [
        ("8", "ok"), ("16", "failed"), ("32", "does not fit")
    ]  # fmt: skip  # one item a line would be longer, not clearer
    assert int(rows[0]["batch_size"]) == record.cells[0].tune.config.batch_size
    assert float(rows[0]["samples_per_second"]) == record.cells[0].tune.samples_per_second
    assert rows[2]["problem"].startswith("nothing fits: ")
    console = Console(width=80, file=io.StringIO(), highlight=False)
    console.print(sweep_table(record))
    text = console.file.getvalue()
    assert all(len(line) <= 80 for line in text.splitlines())
    for part in (
        "width",
        str(record.cells[0].tune.config),
        "does not fit",
        "too wide",
        "3 cells: 1 ok, 1 does not fit, 1 failed",
    ):
        assert part in text
    with pytest.raises(UsageError, match=r"sweep\.json: .* autofit show"):
        result_files.answered(record, tmp_path / "sweep.json")


def test_a_saved_sweep_is_shown_as_its_table_and_a_result_as_itself(swept, record, tmp_path):
    saved = swept[-1].record
    result_files.save_sweep(saved, tmp_path / "sweep.json", columns.as_csv(saved))
    done = CliRunner().invoke(app, ["show", str(tmp_path / "sweep.json")])
    assert done.exit_code == 0, done.output
    console = Console(width=80, file=io.StringIO(), highlight=False)
    console.print(sweep_table(swept[-1].record))
    assert done.stdout == console.file.getvalue()
    result_files.save(record, tmp_path / "result.json")
    assert "To train with it" in CliRunner().invoke(app, ["show", str(tmp_path / "result.json")]).stdout
    result_files.save(swept[-1].record.cells[2].tune, tmp_path / "none.json")
    refused = CliRunner().invoke(app, ["show", str(tmp_path / "none.json")])
    assert refused.exit_code == 2
    assert "none.json: " in refused.stderr
    assert "11.0 MiB" in refused.stderr


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
    assert list(wording.short_names(axes).values()) == names
