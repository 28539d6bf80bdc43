"""A gain is said to be one only where it is shown, in every output; and the choice is explained."""

import csv
import io
from dataclasses import replace

import pytest

from autofit.api.result import Result, SweepResult
from autofit.records.result import Speedup
from autofit.records.states import Outcome
from autofit.report import choice, columns
from autofit.report.html import page
from tests.fakes import with_fields
from tests.unit.report.conftest import BASELINE, summary_of

SHOWN = Speedup(BASELINE, Outcome.OK, 2.22, 2.17, 2.28, 3)
UNSHOWN = {
    "one pair": Speedup(BASELINE, Outcome.OK, 1.84, None, None, 1),
    "an interval that holds 1.0": Speedup(BASELINE, Outcome.OK, 1.84, 0.97, 3.49, 6),
    "no pair": Speedup(BASELINE, Outcome.OK),
}


def outputs(record, sweep):
    """The text of every output that says what is gained."""
    swept = replace(
        sweep, cells=(replace(sweep.cells[0], tune=record), *sweep.cells[1:])
    )
    texts = {
        "summary": summary_of(record),
        "print(result)": str(Result(**vars(record))),
        "page": page.render(record).partition("<script")[0],
        "table of a sweep": str(SweepResult(**vars(swept))),
        "page of a sweep": page.render(swept).partition("<script")[0],
    }
    return {name: " ".join(text.split()) for name, text in texts.items()}


@pytest.mark.parametrize("name", UNSHOWN)
def test_no_output_states_a_gain_that_is_not_shown(record, sweep, name):
    texts = outputs(with_fields(record, speedup=UNSHOWN[name]), sweep)
    for output, text in texts.items():
        assert "no gain" in text, output
        assert "1.84" not in text, output


@pytest.mark.parametrize(
    ("probability", "said"), [(0.999, "9 in 10"), (0.85, "8 in 10")]
)
def test_every_output_says_how_sure_a_likely_gain_is(record, sweep, probability, said):
    likely = Speedup(BASELINE, Outcome.OK, 1.84, 1.3, 2.6)
    texts = outputs(with_fields(record, speedup=likely, probability=probability), sweep)
    for output, text in texts.items():
        gain = (
            "1.8x likely"
            if "table" in output or "sweep" in output
            else f"likely, {said}: 1.8x"
        )
        assert gain in text, output
        assert "confirmed in fresh processes" not in text, output


@pytest.mark.parametrize(
    ("ratio", "low", "high"), [(2.22, 2.17, 2.28), (0.58, 0.51, 0.66)]
)
def test_every_output_states_a_gain_or_a_loss_that_is_shown(
    record, sweep, ratio, low, high
):
    shown = with_fields(
        record, speedup=Speedup(BASELINE, Outcome.OK, ratio, low, high, 3)
    )
    texts = outputs(shown, sweep)
    assert [
        output
        for output, text in texts.items()
        if f"{ratio}x" not in text or "no gain" in text
    ] == []
    assert choice.headlines(shown)[-1].gain == f"shown: {ratio}x ({low} to {high})"


def test_a_baseline_that_failed_is_no_gain(record):
    failed = choice.headlines(
        with_fields(record, speedup=Speedup(BASELINE, Outcome.DEVICE_OOM))
    )[-1]
    assert failed.gain == choice.NONE
    assert "device OOM" in failed.note


def test_a_table_flags_whether_the_gain_is_shown(record, sweep):
    for speedup in (SHOWN, *UNSHOWN.values()):
        saved = with_fields(record, speedup=speedup)
        table = columns.as_csv(
            replace(sweep, cells=(replace(sweep.cells[0], tune=saved),))
        )
        (row,) = csv.DictReader(io.StringIO(table))
        assert row["speedup_is_shown"] == str(speedup.is_shown)
        assert row["speedup"] == ("" if speedup.ratio is None else str(speedup.ratio))


def test_an_answer_without_a_run_says_that_it_was_read_in_the_search(record):
    unconfirmed = replace(
        record, fastest=replace(record.fastest, confirmed=False), runs=()
    )
    rate = choice.figures(unconfirmed, unconfirmed.fastest)["rate"]
    assert rate.endswith("read once in the search, not confirmed")


@pytest.mark.parametrize("is_late", [False, True])
def test_both_answers_are_shown_with_their_code_or_with_the_time_that_would_confirm_them(
    two_answers, sweep, is_late
):
    record = two_answers
    figures = ("1.48x", "2.22x")
    if is_late:
        own = replace(
            record.same_batch, needed_seconds=600.0
        )  # less than the other answer needs
        fastest = replace(record.fastest, confirmed=False, needed_seconds=1234.0)
        record = replace(record, same_batch=own, fastest=fastest)
        record = with_fields(record, speedup=UNSHOWN["no pair"])
        figures = (
            "1.48x",
            "read once in the search, not confirmed",
            "max_seconds to 1234",
        )
    for output, text in outputs(record, sweep).items():
        if "sweep" not in output:
            assert ("not confirmed" in text) == is_late
            assert (
                [figure for figure in figures if figure not in text],
                "to 600" in text,
            ) == (
                [],
                False,
            ), output
            assert (
                text.count("model.fit("),
                text.index("1.48x") < text.index(figures[1]),
            ) == (
                2,
                True,
            ), output
