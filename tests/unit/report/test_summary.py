import io
from dataclasses import replace

from autofit.api.result import Estimate, Result, SweepResult
from autofit.records.result import Cell
from autofit.report import columns
from autofit.report.choice import advice
from autofit.report.console.tables import Terminal, summary
from autofit.report.html import page as html
from tests.fakes import with_fields
from tests.unit.report.conftest import summary_of
from tests.unit.report.snapshots import matches_snapshot


def test_the_summary_of_a_tune(record):
    assert matches_snapshot(summary_of(record), "summary.txt")


def test_a_result_without_readings_prints_itself(record):
    bare = with_fields(
        record,
        spread=None,
        trials=(),
        runs=(),
        device_peak_bytes=None,
        limits=replace(record.limits, device_bytes=None),
        speedup=replace(record.speedup, ratio=None, low=None, high=None),
    )
    assert "bottleneck" not in str(Result(**vars(bare)))
    assert "device memory" not in str(Result(**vars(bare)))


def test_an_epoch_is_stated_with_its_validation_and_the_gap_before_it(record):
    readings = {
        "epoch_samples": 9000,
        "epoch_gap_seconds": 0.25,
        "validation_seconds": 1.5,
    }
    runs = [
        replace(run, measurement=replace(run.measurement, **readings))
        for run in record.runs
    ]
    times = [9000 / run.measurement.samples_per_second + 1.5 for run in reversed(runs)]
    text = (
        f"{times[0]:.0f} s now, {times[1]:.1f} s then; of it 1.5 s validation, 0.25 s between "
        "epochs"
    )
    assert advice(replace(record, runs=tuple(runs)))["epoch"] == text
    one = replace(
        runs[0], measurement=replace(runs[0].measurement, validation_seconds=None)
    )
    assert (
        "validation" not in advice(replace(record, runs=(one, *runs[1:])))["epoch"]
    )  # two epochs of different kinds
    assert "epoch" not in advice(record)
    unread = replace(
        runs[0],
        measurement=replace(record.runs[0].measurement, epoch_gap_unread="made up"),
    )
    assert advice(replace(record, runs=(unread,)))["epoch"].endswith(": made up")


def test_what_the_allocator_had_to_do_for_the_fastest_is_said(record):
    def noted(run):
        measured = replace(
            run.measurement, allocator_notice=f"batch {run.config.batch_size}"
        )
        return replace(run, measurement=measured)

    runs = tuple(map(noted, reversed(record.runs)))
    assert (
        advice(replace(record, runs=runs))["allocator"]
        == f"batch {record.config.batch_size}"
    )
    assert "allocator" not in advice(record)


def test_lines_to_paste_are_never_broken(record):
    folder = "/a/folder" * 20
    long = with_fields(
        record, call_source=replace(record.call_source, data_kwargs={"folder": folder})
    )
    assert f"folder={folder!r}," in str(Result(**vars(long)))
    assert f"folder={folder!r}," in summary_of(long)


def test_of_a_script_the_edit_comes_first_and_in_colour(record):
    diff = "--- a.py\n+++ a.py\n@@ -1,1 +1,1 @@\n-batch = 32\n+batch = 64\n"
    fastest = replace(record.fastest, code=diff)
    source = replace(record.call_source, script="python a.py")
    of_script = replace(record, call_source=source, fastest=fastest)
    text = summary_of(of_script)
    assert text.index("+batch = 64") < text.index("fastest")
    console = Terminal(force_terminal=True, color_system="standard", file=io.StringIO())
    with console.capture() as captured:
        console.print(summary(of_script))
    assert "\x1b[32m+batch = 64\x1b[0m" in captured.get()
    assert "\x1b[31m-batch = 32\x1b[0m" in captured.get()
    page = html.render(of_script)
    assert '<span class="added">+batch = 64</span>' in page
    assert '<span class="file">+++ a.py</span>' in page


def test_a_sweep_prints_itself_as_its_table(sweep):
    swept = SweepResult(**vars(sweep))
    assert all(len(line) <= 80 for line in str(swept).splitlines())
    assert matches_snapshot(str(swept), "sweep.txt")


def test_a_row_has_both_gains_and_an_axis_that_is_called_as_a_column_keeps_its_whole_name(
    sweep, two_answers
):
    cell = Cell(
        {"data_kwargs.memory": 0.5, "model_kwargs.width": 8}, None, "your code failed"
    )
    both, failed = columns.cell_rows(
        replace(sweep, cells=(replace(sweep.cells[0], tune=two_answers), cell))
    )
    assert (both["at your batch"], both["gain"]) == ("1.48x", "2.22x")
    assert (failed["data_kwargs.memory"], failed["width"], failed["memory"]) == (
        "0.5",
        "8",
        "",
    )


def test_an_estimate_prints_each_part(estimate):
    lines = str(Estimate(**vars(estimate))).splitlines()
    assert max(map(len, lines)) <= 80
    for row in estimate.rows:
        for part, size in (row.device_bytes_by_part | row.host_bytes_by_part).items():
            assert not size or any(part in line for line in lines), part
    (sizes,) = (line for line in lines if line.startswith("batch size"))
    assert sizes.split()[2:] == ["8", "32"]
