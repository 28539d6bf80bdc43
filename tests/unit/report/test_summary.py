import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from autofit.api.result import Result, SweepResult
from autofit.records.trial import FitConfig
from autofit.records.units import format_bytes
from autofit.report import snippet
from autofit.report.choice import sentences
from autofit.report.console.progress import Progress
from autofit.report.console.tables import summarise, trial_table
from tests.fakes import with_fields
from tests.unit.report.snapshots import matches_snapshot


def printed(draw, width=80):
    console = Console(width=width, file=io.StringIO(), highlight=False)
    draw(console)
    return console.file.getvalue()


def test_the_summary_of_a_tune(record):
    assert matches_snapshot(printed(lambda console: summarise(record, console)), "summary.txt")


def test_a_result_prints_itself_in_a_screenful(record):
    result = Result(**vars(record))
    text = repr(result)
    assert str(result) == text
    assert text.endswith(snippet.render(record))
    figures = text.removesuffix(snippet.render(record)).splitlines()
    assert len(figures) < 24
    assert all(len(line) <= 80 for line in text.splitlines())
    words = " ".join(text.split())
    speedup = record.speedup
    for shown in (
        str(record.config), f"{record.samples_per_second:,.0f} samples/s: ±{record.spread:.0%}", f"{speedup.ratio:.2f}x",
        f"{speedup.low:.2f} to {speedup.high:.2f}", record.bottleneck, "51% free", format_bytes(record.device_peak_bytes),
        format_bytes(record.limits.device_bytes), format_bytes(record.host_peak_bytes), f"{len(record.searched)} trials",
        "2 min 05 s",
    ):  # fmt: skip  # one item a line would be longer, not clearer
        assert shown in words
    assert "\x1b" not in text


def test_a_result_without_readings_prints_itself_too(record):
    bare = with_fields(
        record,
        spread=None,
        bottleneck="unknown",
        device_peak_bytes=None,
        limits=replace(record.limits, device_bytes=None),
        speedup=replace(record.speedup, ratio=None, low=None, high=None),
    )
    assert "unknown" in str(Result(**vars(bare)))
    assert repr(record).startswith("TuneRecord(")


def test_lines_to_paste_are_never_broken(record):
    folder = "/a/folder" * 20
    long = with_fields(record, call_source=replace(record.call_source, data_kwargs={"folder": folder}))
    assert f"folder={folder!r}," in str(Result(**vars(long)))
    assert f"folder={folder!r}," in printed(lambda console: summarise(long, console))


def test_a_sweep_prints_itself_as_its_table(sweep):
    swept = SweepResult(**vars(sweep))
    text = repr(swept)
    assert str(swept) == text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert matches_snapshot(text, "sweep.txt")


@pytest.mark.parametrize("quiet", [False, True])
def test_a_progress_prints_the_summary_unless_quiet(record, quiet):
    text = printed(lambda console: Progress(console, quiet=quiet).summarise(record))
    assert text == ("" if quiet else printed(lambda console: summarise(record, console)))


def test_autotune_is_auto_in_the_table(record):
    auto = replace(record.trials[0], config=FitConfig(64, -1, -1))
    row = printed(lambda console: console.print(trial_table([auto], record.limits))).splitlines()[1]
    assert row.split()[:5] == ["1", "64", "auto", "thr", "auto"]


def test_few_updates_are_said_in_a_screenful_too(record):
    assert "updates" not in str(Result(**vars(record)))
    few = with_fields(record, description=replace(record.description, sample_count=200))
    assert "updates" in str(Result(**vars(few)))


def test_every_trial_is_a_row_of_the_table(record):
    text = printed(lambda console: console.print(trial_table(record.trials, record.limits)))
    assert len(re.findall(r" (?:ok|\w+ OOM) ", text)) == len(record.trials)


def test_an_epoch_is_told_with_its_validation_and_the_gap_before_it(record):
    def runs(**readings):
        return tuple(replace(run, measurement=replace(run.measurement, **readings)) for run in record.runs)

    def row(changed):
        return sentences(changed).get("epoch")

    chosen, baseline = runs(epoch_samples=9000, epoch_gap_seconds=0.25, validation_seconds=1.5)
    both = replace(record, runs=(chosen, baseline))
    times = [9000 / run.measurement.samples_per_second + 1.5 for run in (baseline, chosen)]
    parts = "of it 1.5 s validation, 0.25 s between epochs"
    assert row(both) == f"{times[0]:.0f} s now, {times[1]:.1f} s then; {parts}"
    assert row(with_fields(both, config=record.speedup.baseline)) == f"{times[0]:.0f} s now; {parts}"
    assert "s then; of it 1.5 s validation" in str(Result(**vars(both)))
    unread = replace(record, runs=runs(epoch_gap_unread="an epoch takes more than 500 s"))
    assert row(unread) == "the gap between epochs is not in the rate: an epoch takes more than 500 s"
    assert row(record) is None
