"""A gain is said to be one only where it is shown, in every output; and the choice is explained."""

import csv
import io
from dataclasses import replace

import pytest
from rich.console import Console

from autofit.api.result import Result, SweepResult
from autofit.records.result import Challenger, Speedup
from autofit.records.states import Outcome
from autofit.report import choice, columns
from autofit.report.console.tables import summarise
from autofit.report.html import page
from autofit.storage import result_files
from tests.fakes import with_fields
from tests.unit.report.conftest import BASELINE, CHOSEN

SHOWN = Speedup(BASELINE, Outcome.OK, 2.22, 2.17, 2.28, 3)
UNSHOWN = {
    "one pair": Speedup(BASELINE, Outcome.OK, 1.84, None, None, 1),
    "an interval that holds 1.0": Speedup(BASELINE, Outcome.OK, 1.84, 0.97, 3.49, 6),
    "no pair": Speedup(BASELINE, Outcome.OK),
}


def outputs(record, sweep):
    """The text of every output that says what is gained."""
    console = Console(width=80, file=io.StringIO())
    summarise(record, console)
    swept = replace(sweep, cells=(replace(sweep.cells[0], tune=record), *sweep.cells[1:]))
    texts = {
        "summary": console.file.getvalue(),
        "print(result)": str(Result(**vars(record))),
        "page": page.render(record).partition("<script")[0],
        "table of a sweep": str(SweepResult(**vars(swept))),
        "page of a sweep": page.render(swept).partition("<script")[0],
    }
    return {name: " ".join(text.split()) for name, text in texts.items()}


@pytest.mark.parametrize("name", UNSHOWN)
def test_no_output_states_a_gain_that_is_not_shown(record, sweep, name):
    speedup = UNSHOWN[name]
    assert not speedup.is_shown
    texts = outputs(with_fields(record, speedup=speedup), sweep)
    assert [output for output, text in texts.items() if "no gain shown" not in text] == []
    assert [output for output, text in texts.items() if "1.84" in text] == []
    assert {output for output, text in texts.items() if "0.97" in text} == (
        {"summary", "print(result)", "page"} if speedup.pairs == 6 else set()
    )


def test_every_output_states_a_gain_or_a_loss_that_is_shown(record, sweep):
    texts = outputs(with_fields(record, speedup=SHOWN), sweep)
    assert [output for output, text in texts.items() if "2.22" not in text or "no gain shown" in text] == []
    slower = with_fields(record, speedup=Speedup(BASELINE, Outcome.OK, 0.58, 0.51, 0.66, 3))
    assert choice.headline(slower).gain == "0.58x (0.51 to 0.66)"
    assert all("0.58" in text for text in outputs(slower, sweep).values())


@pytest.mark.parametrize(
    ("speedup", "facts"),
    [
        (UNSHOWN["one pair"], ("1,990", "1 pair")),
        (UNSHOWN["an interval that holds 1.0"], ("0.97", "3.5")),
        (UNSHOWN["no pair"], ()),
        (Speedup(BASELINE, Outcome.OK, 0.58, 0.51, 0.66, 3), ("0.58x",)),
        (Speedup(BASELINE, Outcome.OK, 1.01, 1.005, 1.015, 3), ("1.01x",)),
        (Speedup(BASELINE, Outcome.OK, 2.08, 0.06, 71.91, 3), ("about 2x (0.060 to 72)",)),
    ],
)
def test_a_baseline_that_keeps_its_place_is_said_with_the_evidence(record, sweep, speedup, facts):
    challenger = Challenger(CHOSEN, 1990.0, speedup)
    kept = replace(record, fastest=replace(record.fastest, config=BASELINE, speedup=SHOWN, challenger=challenger))
    kept = with_fields(kept, speedup=Speedup(BASELINE, Outcome.OK, 1.0, 1.0, 1.0, 3))
    shown = choice.headline(kept)
    assert shown.gain == choice.NO_GAIN
    assert all(fact in str(shown) for fact in (*facts, str(BASELINE), str(CHOSEN)))
    assert all("no gain shown" in text for text in outputs(kept, sweep).values())


def test_a_baseline_that_failed_is_no_gain(record):
    failed = choice.headline(with_fields(record, speedup=Speedup(BASELINE, Outcome.DEVICE_OOM)))
    assert failed.gain == choice.NONE
    assert "device OOM" in failed.note


def test_files_flag_whether_the_gain_is_shown(record, sweep, tmp_path):
    for speedup in (SHOWN, *UNSHOWN.values()):
        saved = with_fields(record, speedup=speedup)
        assert result_files.decode(result_files.encode(saved)).fastest == saved.fastest
        table = columns.as_csv(replace(sweep, cells=(replace(sweep.cells[0], tune=saved),)))
        (row,) = csv.DictReader(io.StringIO(table))
        assert row["speedup_is_shown"] == str(speedup.is_shown)
        assert row["speedup"] == ("" if speedup.ratio is None else str(speedup.ratio))


def test_both_answers_are_shown_with_their_code_or_with_the_time_that_would_confirm_them(two_answers, sweep):
    late = replace(two_answers, fastest=replace(two_answers.fastest, confirmed=False, needed_seconds=1234.0))
    late = with_fields(late, speedup=UNSHOWN["no pair"])
    for name, record, figures in (
        ("shown", two_answers, ("1.48x", "2.22x")),
        ("late", late, ("1.48x", "not confirmed", "max_seconds to 1234")),
    ):
        for output, text in outputs(record, sweep).items():
            if "sweep" not in output:
                assert ("read once in the search, not confirmed" in text) == (name == "late")
                assert [figure for figure in figures if figure not in text] == [], (name, output)
                assert (text.count("model.fit("), text.index("1.48x") < text.index(figures[1])) == (2, True), (name, output)
