"""Cells that are tuned at the same time, as they are shown while they run and in the table."""

import csv
import io
import re
from dataclasses import replace

from rich.console import Console

from autofit.records.sweep import Cell
from autofit.report import columns
from autofit.report.console.progress import CellsProgress, Progress
from autofit.report.console.tables import sweep_table
from autofit.storage import result_files
from tests.unit.report.conftest import shown_cells

WIDTH = 80


def console(**options):
    return Console(file=io.StringIO(), width=WIDTH, height=12, highlight=False, **options)


def printed(record):
    shown = console()
    shown.print(sweep_table(record))
    return shown.file.getvalue()


def test_without_a_terminal_each_cell_has_a_line_where_it_begins_and_where_it_ends():
    shown = console()
    with CellsProgress(Progress(shown), 3) as cells:
        cells.doing(0, "cell 1 of 3: width 8", "host1", "")
        cells.doing(0, "cell 1 of 3: width 8", "host1", "2 trials, searching")
        cells.ended(0, "cell 1 of 3: width 8", "fastest: batch 32")
    lines = shown.file.getvalue().splitlines()
    assert len(lines) == 2
    assert "width 8" in lines[0]
    assert lines[0].endswith("host1")
    assert lines[1].startswith("cell 1 of 3: width 8: fastest: batch 32 (host1, ")


def test_on_a_terminal_the_cells_under_way_are_a_table_that_fits_the_screen():
    shown = console(force_terminal=True)
    with CellsProgress(Progress(shown), 100) as cells:
        for n in range(20):
            cells.doing(n, f"cell {n + 1} of 100: width {n}", f"host{n}", "")
        cells.doing(3, "cell 4 of 100: width 3", "host3", "2 trials, searching batch 64" + ", and more" * 9)
        cells.ended(0, "cell 1 of 100: width 0", "failed: no")
        drawn = console()
        drawn.print(cells._draw())
    lines = drawn.file.getvalue().splitlines()
    assert re.findall(r"\d+", lines[0]) == ["1", "100", "19", "80"]
    assert len(lines[1].split()) == 4
    assert any("host3" in line and "2 trials, searching batch 64" in line for line in lines)
    assert lines[-1] == "… and 11 more cells"
    assert len(lines) <= 12
    assert all(len(line) <= WIDTH for line in lines)


def test_nothing_is_shown_where_that_is_asked_for():
    shown = console(force_terminal=True)
    with CellsProgress(Progress(shown, quiet=True), 1) as cells:
        cells.doing(0, "cell", "host", "")
        cells.ended(0, "cell", "ok")
    assert shown.file.getvalue() == ""


def test_the_hosts_are_a_column_where_there_are_several(sweep, tmp_path):
    assert "tuned on" not in printed(sweep)
    assert "tuned on" not in shown_cells(sweep)[0]
    cells = [replace(cell, host=f"host{n}", note="host9 was lost" * (n == 1)) for n, cell in enumerate(sweep.cells)]
    there = replace(sweep, cells=tuple(cells))
    text = printed(there)
    assert "host0" in text.splitlines()[1]
    assert "host9 was lost" in text
    assert [row["tuned on"].text for row in shown_cells(there)] == [cell.host for cell in cells]
    result_files.save_sweep(there, tmp_path / "sweep.json", columns.as_csv(there))
    loaded = result_files.load(tmp_path / "sweep.json").cells
    assert [(cell.host, cell.note) for cell in loaded] == [(cell.host, cell.note) for cell in cells]
    rows = list(csv.DictReader(io.StringIO((tmp_path / "sweep.csv").read_text())))
    assert [(row["host"], row["note"]) for row in rows] == [(cell.host, cell.note) for cell in cells]


def test_of_thousands_of_cells_the_table_shows_some_hundred(sweep):
    many = replace(sweep, cells=tuple(Cell({"n": n}, problem="no") for n in range(2000)))
    lines = printed(many).splitlines()
    assert len(lines) < 2500
    assert "… and 1,500 more cells, in the CSV file" in lines
    assert lines[-1].startswith("2,000 cells: 2000 failed")
