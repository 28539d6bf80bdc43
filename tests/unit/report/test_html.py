import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from autofit.api.result import Result
from autofit.records.knobs import FitConfig
from autofit.records.result import Cell
from autofit.records.states import Outcome
from autofit.records.trial import Evidence, Measurement, Trial
from autofit.report import snippet
from autofit.report.html import page as html
from autofit.report.html import plots
from tests.fakes import MACHINE, MIB, with_fields

HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \"quoted\" 'too'"
)


class Page(HTMLParser):
    """The words, the tags and the figures of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.text = []
        self._open = ""
        figures = re.search(
            r'<script type="application/json" id="figures">(.*)</script>', text
        )
        self.figures = (
            json.loads(figures[1], parse_constant=pytest.fail) if figures else {}
        )
        self.feed(text)
        self.words = " ".join(" ".join(self.text).split())

    def handle_starttag(self, tag, attributes):
        self._open = tag
        self.tags.append((tag, dict(attributes).get("class")))

    def handle_endtag(self, tag):
        self._open = ""

    def handle_data(self, data):
        if self._open not in ("script", "style"):
            self.text.append(data)


def traces(plot):
    """The traces of a plot by their names."""
    return {trace["name"]: trace for trace in plot.figure["data"]}


def test_the_answers_stand_on_top_and_every_trial_and_run_below_with_its_details(
    two_answers,
):
    text = html.render(two_answers)
    page = Page(text)
    order = [
        "build_model on Photos",
        "Tesla T4",
        "keras 3",
        "1.48x",
        "2.22x",
        "Throughput against batch size",
        "device full",
    ]
    positions = [page.words.index(shown) for shown in order]
    assert positions == sorted(positions)
    for answer in (two_answers.same_batch, two_answers.fastest):
        assert " ".join(snippet.render(two_answers, answer).split()) in page.words
        assert str(answer.config) in page.words
    assert page.tags.count(("tr", "detail")) == len(two_answers.trials) + len(
        two_answers.runs
    )
    assert page.words.count("device OOM") == sum(
        t.measurement.outcome is Outcome.DEVICE_OOM for t in two_answers.trials
    )
    assert set(page.figures) == {"throughput", "memory"}
    own = (html._TEMPLATES / "page.css").read_text() + (
        html._TEMPLATES / "page.js"
    ).read_text()
    assert not re.search(r"https?:|@import|url\(", own)  # nothing from the network


def test_what_the_users_code_wrote_cannot_become_part_of_a_page(record, sweep):
    broken = Measurement(
        Outcome.CRASHED,
        Evidence(HOSTILE, log_tail=(HOSTILE, "second line")),
        1.0,
        traceback=HOSTILE,
    )
    trials = (*record.trials, Trial(record.config, broken, why=HOSTILE))
    cell = Cell({"model_kwargs.width": HOSTILE, "data_kwargs.size": "s"}, None, HOSTILE)
    for clean, dirty in (
        (
            record,
            with_fields(record, trials=trials, machine=replace(MACHINE, host=HOSTILE)),
        ),
        (sweep, replace(sweep, cells=(*sweep.cells, cell))),
    ):
        before = Page(html.render(clean))
        page = Page(html.render(dirty))
        scripts = [
            sum(tag == "script" for tag, _ in each.tags) for each in (before, page)
        ]
        assert scripts[0] == scripts[1]
        assert ("img", None) not in page.tags
        assert HOSTILE in "\n".join(page.text)
        assert "<" not in re.sub("</?b>|<br>", "", json.dumps(page.figures))


def test_throughput_is_drawn_with_both_ceilings_the_answers_the_baseline_and_what_failed(
    two_answers,
):
    drawn = traces(plots.throughput(two_answers))
    fits = [trial for trial in two_answers.trials if trial.fits(two_answers.limits)]
    measured = {
        t.config.batch_size: t.measurement.compute_samples_per_second for t in fits
    }
    assert (
        dict(zip(drawn["model alone"]["x"], drawn["model alone"]["y"], strict=True))
        == measured
    )
    assert {"input alone", "out of memory"} <= set(drawn)
    marks = [drawn["baseline"], drawn["at your batch"], drawn["fastest"]]
    assert [(mark["x"], mark["y"]) for mark in marks] == [
        ([32], [900.0]),
        ([32], [4000.0 / 3]),
        ([64], [2000.0]),
    ]
    assert [round(mark["error_y"]["array"][0]) for mark in marks[1:]] == [41, 62]
    points = [
        point
        for n, t in drawn.items()
        if n.startswith("trials")
        for point in zip(t["x"], t["y"], strict=True)
    ]
    rated = [t for t in two_answers.trials if t.measurement.samples_per_second]
    assert sorted(points) == sorted(
        (t.config.batch_size, t.measurement.samples_per_second) for t in rated
    )


def test_memory_is_drawn_as_shares_of_the_limits_with_out_of_memory_points(two_answers):
    drawn = traces(plots.memory(two_answers))
    chosen = two_answers.fastest
    limits = two_answers.limits
    shares = [
        chosen.device_peak_bytes / limits.device_bytes,
        chosen.host_peak_bytes / limits.host_bytes,
    ]
    assert (drawn["fastest"]["x"], drawn["fastest"]["y"]) == ([64, 64], shares)
    assert drawn["out of device memory"]["y"] == drawn["limit"]["y"] == [1.0, 1.0]
    roomy = replace(two_answers, limits=replace(limits, device_bytes=4096 * MIB))
    assert "limit" not in traces(plots.memory(replace(roomy, trials=())))


def test_a_tune_without_a_result_and_one_without_readings_have_a_page(
    record, failed_tune
):
    page = Page(html.render(failed_tune))
    assert page.words.count(failed_tune.problem) == 1
    assert set(page.figures) == {"memory"}
    assert (
        Page(
            html.render(replace(failed_tune, description=None, trials=(), memory=None))
        ).figures
        == {}
    )
    bare = replace(record.trials[0], config=FitConfig())
    assert (
        Page(
            html.render(
                with_fields(record, config=FitConfig(), trials=(bare,), runs=())
            )
        ).figures
        == {}
    )
    measurement = replace(bare.measurement, samples_per_second=float("nan"))
    Page(
        html.render(
            with_fields(
                record,
                trials=(
                    replace(record.trials[0], measurement=measurement),
                    *record.trials,
                ),
            )
        )
    )


def test_a_knob_that_could_not_be_tuned_is_named_in_every_output(record):
    reason = "your code runs with 32 only (ValueError: made up)"
    fixed = with_fields(
        record, description=replace(record.description, untuned={"batch_size": reason})
    )
    for text in (Page(html.render(fixed)).words, str(Result(**vars(fixed)))):
        assert f"batch_size: {reason}" in " ".join(text.split())


def test_a_sweep_is_a_plot_and_a_table_of_its_cells(failed_tune, sweep):
    cell = Cell(
        {"model_kwargs.width": 24, "data_kwargs.size": "s"},
        failed_tune,
        failed_tune.problem,
    )
    page = Page(html.render(replace(sweep, cells=(*sweep.cells, cell))))
    for shown in (
        "does not fit",
        "failed",
        "waiting",
        failed_tune.problem,
        str(sweep.cells[0].result.config),
    ):
        assert shown in page.words
    assert sum(tag == "tr" for tag, _ in page.tags) == 1 + 4
    (figure,) = page.figures.values()
    assert len(figure["data"][0]["y"]) == 1  # of the cell that has a result
    assert Page(html.render(replace(sweep, cells=sweep.cells[1:]))).figures == {}


def test_a_notebook_shows_the_answers_without_scripts(two_answers):
    page = Page(Result(**vars(two_answers))._repr_html_())
    assert {"script", "style", "link"}.isdisjoint(tag for tag, _ in page.tags)
    for answer in (two_answers.same_batch, two_answers.fastest):
        assert str(answer.config) in page.words
        assert " ".join(snippet.render(two_answers, answer).split()) in page.words
