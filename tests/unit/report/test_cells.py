"""The cells of a sweep in its table."""

import csv
import io
from dataclasses import replace

from rich.console import Console

from autofit.records.result import Cell
from autofit.report import columns
from autofit.report.console.tables import sweep_table
from autofit.storage import result_files


def printed(record):
    console = Console(file=io.StringIO(), width=80, height=12, highlight=False)
    console.print(sweep_table(record))
    return console.file.getvalue()


def test_the_hosts_are_a_column_where_there_are_several(sweep, tmp_path):
    assert "tuned on" not in printed(sweep)
    cells = [replace(cell, host=f"host{n}") for n, cell in enumerate(sweep.cells)]
    there = replace(sweep, cells=tuple(cells))
    text = printed(there)
    assert "host0" in text.splitlines()[1]
    assert [row["tuned on"] for row in columns.cell_rows(there)] == [cell.host for cell in cells]
    result_files.save_sweep(there, tmp_path / "sweep.json", columns.as_csv(there))
    loaded = result_files.load(tmp_path / "sweep.json").cells
    assert [cell.host for cell in loaded] == [cell.host for cell in cells]
    rows = list(csv.DictReader(io.StringIO((tmp_path / "sweep.csv").read_text())))
    assert [row["host"] for row in rows] == [cell.host for cell in cells]


def test_a_row_has_both_gains_and_an_axis_that_is_called_as_a_column_keeps_its_whole_name(sweep, two_answers):
    cell = Cell({"data_kwargs.memory": 0.5, "model_kwargs.width": 8}, None, "your code failed")
    both, failed = columns.cell_rows(replace(sweep, cells=(replace(sweep.cells[0], tune=two_answers), cell)))
    assert (both["at your batch"], both["gain"]) == ("1.48x", "2.22x")
    assert (failed["data_kwargs.memory"], failed["width"], failed["memory"]) == ("0.5", "8", "")
