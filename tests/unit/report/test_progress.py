import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from autofit.records.events import Activity, Described
from autofit.records.knobs import FitConfig
from autofit.records.states import Phase
from autofit.records.trial import Trial
from autofit.report.console.progress import Progress


def test_plain_progress_is_one_line_a_trial_with_reasons(record):
    def plain(**options):
        console = Console(width=80, file=io.StringIO(), highlight=False)
        with Progress(console, **options) as progress:
            for trial in (*record.trials, *record.runs):
                progress.show(trial)
        return console.file.getvalue()

    text = plain()
    assert len(
        re.findall(r"^batch \d+, .*: (?:ok|device OOM|host OOM)", text, re.MULTILINE)
    ) == len(record.trials)
    assert len(re.findall(r"^(?:chosen|beside): ", text, re.MULTILINE)) == len(
        record.runs
    )
    for trial in record.trials:
        assert str(trial.config) in text
        assert (
            trial.measurement.outcome.value == "ok"
            or f"    {trial.measurement.evidence.reason}" in text
        )
    assert "\x1b" not in text
    assert plain(quiet=True) == ""


def show_trials(progress, record, *, trials, max_seconds=None):
    """So many trials of 5 s."""
    progress.show(
        Described(
            record.description, replace(record, trials=(), seconds=30.0), max_seconds
        )
    )
    for number in range(1, trials + 1):
        took = replace(record.trials[0].measurement, seconds=5.0)
        progress.show(Trial(FitConfig(number, 1, 10, False), took))


@pytest.mark.parametrize(
    ("max_seconds", "left"), [(3660, "(about 1 h 00 min left)"), (None, "")]
)
def test_the_time_left_is_that_of_max_seconds(record, max_seconds, left):
    console = Console(width=80, file=io.StringIO())
    progress = Progress(console)
    show_trials(progress, record, trials=1, max_seconds=max_seconds)
    progress.show(Activity("trial 2", FitConfig(64), why="promising"))
    shown = " ".join(console.file.getvalue().split())
    assert left in shown
    assert ("left" in shown) == bool(left)


@pytest.mark.parametrize("trials", [1, 60])
def test_the_live_display_begins_with_the_running_trial_and_ends_with_a_row_for_each(
    record, trials, monkeypatch
):
    module = "autofit.report.console.progress"
    monkeypatch.setattr(
        f"{module}._REFRESH_PER_SECOND", 0.001
    )  # the frame that stays is the only one
    terminal = Console(
        width=80, height=24, file=io.StringIO(), force_terminal=True, color_system=None
    )
    drawn = Console(width=80, file=io.StringIO())
    with Progress(terminal) as progress:
        show_trials(progress, record, trials=trials)
        progress.show(
            Activity(
                "trial 61 of at most 99",
                FitConfig(64),
                Phase.TRAINING,
                "the largest that may fit",
            )
        )
        drawn.print(progress._draw())
    lines = drawn.file.getvalue().splitlines()
    assert "trial 61" in lines[0]
    assert any("█" in line for line in lines)
    rows = [int(line.split()[0]) for line in lines if " ok " in line]
    assert rows == list(range(trials, 0, -1))
    assert terminal.file.getvalue().rpartition("samples/s")[2].count(" ok ") == trials
