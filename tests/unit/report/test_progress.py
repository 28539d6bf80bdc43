import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from autofit.records.events import Activity, Described, TrialEnded
from autofit.records.states import Phase
from autofit.records.trial import FitConfig, Trial
from autofit.report.console.progress import Progress
from autofit.tuning.engine import tune
from tests.fakes import MIB, FakeLauncher, collect, make_request


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    request = make_request(tmp_path_factory.mktemp("tune"), device_bytes=150 * MIB)
    return collect(tune, request, FakeLauncher(cliff=64))[0]


def plain(events, **options):
    console = Console(width=80, file=io.StringIO(), highlight=False)
    with Progress(console, **options) as progress:
        for event in events:
            progress.show(event)
    return console.file.getvalue()


def test_plain_progress_is_one_line_a_trial_with_reasons(events):
    text = plain(events)
    ended = [event for event in events if isinstance(event, TrialEnded)]
    searched = [event.trial for event in ended if event.trial.stage == "search"]
    assert len(re.findall(r"^batch \d+, .*: (?:ok|device OOM|host OOM)", text, re.MULTILINE)) == len(searched)
    assert len(re.findall(r"^(?:chosen|baseline): ", text, re.MULTILINE)) == 6
    for trial in searched:
        assert str(trial.config) in text
        assert trial.measurement.outcome.value == "ok" or f"    {trial.measurement.evidence.reason}" in text
    assert "\x1b" not in text
    assert plain(events, quiet=True) == ""


def show_trials(progress, record, *, trials, max_trials=12, max_seconds=None, seconds=0.0):
    """So many trials of 5 s."""
    about = (record.description, record.limits, record.machine, "CPU", (), max_trials, max_seconds)
    progress.show(Described(*about, seconds))
    for number in range(1, trials + 1):
        took = replace(record.trials[0].measurement, seconds=5.0)
        progress.show(TrialEnded(Trial(FitConfig(number, 1, 10, False), took)))


@pytest.mark.parametrize(
    ("trials", "max_seconds", "past", "left"),
    [(11, None, 0, "35 s"), (11, 3600, 0, "35 s"), (1, 25, 0, "2"), (0, 5430, 1800, "1 h 00 min"), (0, None, 0, "")],
)
def test_the_time_left_ends_with_the_seconds_or_the_trials_whichever_is_sooner(record, trials, max_seconds, past, left):
    progress = Progress(Console(width=80, file=io.StringIO()))
    show_trials(progress, record, trials=trials, max_seconds=max_seconds, seconds=past)
    shown = progress._time_left()
    assert left in shown
    assert bool(left) == bool(shown)


def test_the_time_kept_for_confirming_is_part_of_the_time_left(record):
    console, drawn = Console(width=80, file=io.StringIO()), Console(width=80, file=io.StringIO())
    progress = Progress(console)
    show_trials(progress, record, trials=11)
    for reserved, kept in ((20.0, "20 s"), (90.0, "35 s")):
        progress.show(Activity(f"trial {reserved}", FitConfig(64), why="promising", reserved_seconds=reserved))
        drawn.print(progress._draw())
        for shown in (console, drawn):
            assert f"(about 35 s left, {kept} of it kept for confirming)" in " ".join(shown.file.getvalue().split())


@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("trials", [1, 20, 60])
def test_the_live_display_fits_the_terminal_and_leaves_all_of_it_there(record, trials, width, monkeypatch):
    monkeypatch.setattr(
        "autofit.report.console.progress._REFRESH_PER_SECOND", 0.001
    )  # the frame that stays is the only one
    terminal = Console(width=width, height=24, file=io.StringIO(), force_terminal=True, color_system=None)
    drawn = Console(width=width, file=io.StringIO())
    with Progress(terminal) as progress:
        show_trials(progress, record, trials=trials, max_trials=99)
        progress.show(Activity("trial 61 of at most 99", FitConfig(64), Phase.TRAINING, "the largest that may fit " * 4))
        drawn.print(progress._draw())
    lines = [line.rstrip() for line in drawn.file.getvalue().splitlines()]
    assert len(lines) <= 24
    assert any("trial 61" in line for line in lines)
    assert any("the largest" in line for line in lines)
    assert any("█" in line for line in lines)
    rows = [line.split()[0] for line in lines if " ok " in line]
    assert rows[-1] == str(trials)
    earlier = trials - len(rows)
    assert not earlier or (lines[0].startswith(f"… {earlier} ") and len(lines) == 24)
    assert earlier or len(rows) == trials
    assert terminal.file.getvalue().rpartition("samples/s")[2].count(" ok ") == trials
