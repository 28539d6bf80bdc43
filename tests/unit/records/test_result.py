import pytest

from autofit.records.result import Cell, SweepRecord
from tests.fakes import MACHINE


@pytest.mark.parametrize(
    ("problem", "line"),
    [("", ""), ("one line", "one line"), ("failed\n  File x\n\nValueError: no\n", "failed ValueError: no")],
)
def test_a_problem_in_one_line_has_no_traceback(problem, line):
    assert Cell({}, None, problem).problem_line == line


def test_the_axes_of_a_sweep_are_those_of_all_cells_in_order():
    cells = (Cell({"width": 8, "size": 1}), Cell({"width": 16}), Cell({"depth": 3}))
    sweep = SweepRecord(title="s", cells=cells, machine=MACHINE, seconds=1.0, started_at=0.0)
    assert sweep.axes == ("width", "size", "depth")
