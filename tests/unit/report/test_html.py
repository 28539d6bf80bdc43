import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import plotly.graph_objects as go
import pytest
from typer.testing import CliRunner

from autofit.api.result import Result
from autofit.cli import app
from autofit.errors import UsageError
from autofit.records.result import Cell
from autofit.records.states import Outcome
from autofit.records.trial import Evidence, FitConfig, Measurement, Trial
from autofit.report import choice, snippet
from autofit.report.html import page as html
from autofit.report.html import plots
from autofit.storage import result_files
from tests.fakes import MACHINE, MIB, with_fields

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \"quoted\" 'too'"


class Page(HTMLParser):
    """The parts of a page that its tests ask for."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.loads, self._open = [], [], [], None
        self.scripts = {}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        by_name = dict(attributes)
        self.tags.append((tag, by_name))
        self._open = (tag, by_name.get("id")) if tag in ("script", "style") else None
        self.loads += [value for name, value in attributes if name in ("src", "href", "data", "poster", "srcset")]

    def handle_endtag(self, tag):
        self._open = None

    def handle_data(self, data):
        if self._open is None:
            self.text.append(data)
        else:
            self.scripts[self._open] = self.scripts.get(self._open, "") + data

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())

    @property
    def figures(self):
        return json.loads(self.scripts["script", "figures"])

    def count(self, tag, **attributes):
        return sum(t == tag and all(has.get(k) == v for k, v in attributes.items()) for t, has in self.tags)


def traces(plot):
    """The traces of a plot by their names; plotly checks all of it."""
    return {trace.name: trace for trace in go.Figure(plot.figure).data}


def on_cpu(record):
    """The record of arrays on a device that has no memory of its own."""

    def strip(trial):
        measurement = replace(trial.measurement, device_peak_bytes=None)
        return replace(trial, config=FitConfig(trial.config.batch_size), measurement=measurement)

    trials = tuple(strip(t) for t in record.trials if t.measurement.outcome is Outcome.OK)
    limits, runs = replace(record.limits, device_bytes=None), tuple(strip(run) for run in record.runs)
    config = FitConfig(record.config.batch_size)
    return with_fields(record, trials=trials, runs=runs, limits=limits, device_peak_bytes=None, config=config)


def test_the_answers_stand_on_top_and_every_trial_and_run_below_with_its_details(two_answers):
    text = html.render(two_answers)
    page = Page(text)
    order = ["build_model on Photos", "build_model(width=8)", "Photos(folder='photos')", "Tesla T4", "keras 3", "1.48x"]
    positions = [page.words.index(shown) for shown in (*order, "2.22x", "Throughput against batch size")]
    assert positions == sorted(positions)
    for answer in choice.answers(two_answers):
        assert " ".join(snippet.render(two_answers, answer).split()) in page.words
        assert str(answer.config) in page.words
    assert page.count("div", **{"class": "snippet"}) == 2
    assert [
        shown for shown in ("% free", two_answers.bottleneck, "2001-09-09", "device full") if shown not in page.words
    ] == []
    rows = len(two_answers.trials) + len(two_answers.runs)
    assert page.count("input", type="checkbox") == page.count("tr", **{"class": "detail"}) == rows
    assert page.count("tr", **{"class": "chosen"}) == 2 + 2 * 3  # the trials and runs of both answers
    assert page.words.count("device OOM") == sum(t.measurement.outcome is Outcome.DEVICE_OOM for t in two_answers.trials)
    placed = {has["data-plot"] for _, has in page.tags if "data-plot" in has}
    assert placed == set(page.figures) == {"throughput", "memory"}
    assert (page.loads, text.count("plotly.js v")) == (["data:,"], 1)  # nothing from the network
    own = (html._TEMPLATES / "page.css").read_text() + (html._TEMPLATES / "page.js").read_text()
    assert not re.search(r"https?:|@import|url\(", own)


def test_what_the_users_code_wrote_cannot_become_part_of_the_page(record):
    evidence = Evidence(HOSTILE, log_tail=(HOSTILE, "second line"))
    broken = Trial(record.config, Measurement(Outcome.CRASHED, evidence, 1.0, traceback=HOSTILE), why=HOSTILE)
    scripts = Page(html.render(record)).count("script")
    record = with_fields(record, trials=(*record.trials, broken), machine=replace(MACHINE, host=HOSTILE))
    page = Page(html.render(record))
    assert (page.count("script"), page.count("img")) == (scripts, 0)
    assert HOSTILE in "\n".join(page.text)
    figures = json.dumps(page.figures)
    assert "&lt;img" in figures
    assert "<img" not in figures
    assert "<script" not in html.compact(record)


def test_throughput_is_drawn_with_both_ceilings_the_answers_the_baseline_and_what_failed(two_answers):
    record = two_answers
    drawn = traces(plots.throughput(record))
    assert {"model alone", "input alone", "out of memory"} <= set(drawn)
    fits = [trial for trial in record.trials if trial.fits(record.limits)]
    measured = {t.config.batch_size: t.measurement.compute_samples_per_second for t in fits}
    assert dict(zip(drawn["model alone"].x, drawn["model alone"].y, strict=True)) == measured
    marks = [drawn["baseline"], drawn["at your batch"], drawn["fastest"]]
    assert [(list(mark.x), list(mark.y)) for mark in marks] == [([32], [900.0]), ([32], [4000.0 / 3]), ([64], [2000.0])]
    assert len({(mark.marker.symbol, mark.marker.color) for mark in marks}) == 3
    assert [round(mark.error_y.array[0]) for mark in marks[1:]] == [41, 62]  # the baseline's made-up runs do not differ
    rated = [t for t in record.trials if t.measurement.samples_per_second]
    points = [(x, y) for n, t in drawn.items() if n.startswith("trials") for x, y in zip(t.x, t.y, strict=True)]
    assert sorted(points) == sorted((t.config.batch_size, t.measurement.samples_per_second) for t in rated)
    assert all(any(str(t.config) in text for t in rated) for text in drawn["trials with other settings"].hovertext)
    wide = traces(plots.throughput(replace(with_fields(record, spread=40.0, confirmed=False), runs=())))
    assert wide["fastest, not confirmed"].error_y.array is None
    assert "baseline" not in wide


def test_memory_is_drawn_as_shares_of_the_limits_with_out_of_memory_points(two_answers):
    plot = plots.memory(two_answers)
    drawn, chosen, limits = traces(plot), two_answers.fastest, two_answers.limits
    shares = [chosen.device_peak_bytes / limits.device_bytes, chosen.host_peak_bytes / limits.host_bytes]
    assert (list(drawn["fastest"].x), list(drawn["fastest"].y)) == ([64, 64], shares)
    assert (64, shares[0]) in zip(drawn["device memory"].x, drawn["device memory"].y, strict=True)
    assert list(drawn["out of device memory"].y) == list(drawn["limit"].y) == [1.0, 1.0]
    assert "device full" in drawn["out of device memory"].hovertext[0]
    assert {"baseline", "at your batch", "host memory"} <= set(drawn)
    assert "150 MiB" in plot.caption
    roomy = replace(two_answers, limits=replace(limits, device_bytes=4096 * MIB))
    calm = plots.memory(replace(roomy, trials=tuple(t for t in roomy.trials if t.fits(roomy.limits))))
    assert "limit" not in traces(calm)
    assert calm.figure["layout"]["yaxis"]["range"][1] < 0.5


def test_a_tune_without_a_result_shows_why_and_its_trials(failed_tune):
    page = Page(html.render(failed_tune))
    assert page.words.count(failed_tune.problem) == 1
    assert set(page.figures) == {"memory"}
    assert page.count("tr", **{"class": "detail"}) == len(failed_tune.trials)
    assert page.count("div", **{"class": "snippet"}) == 0
    undescribed = replace(failed_tune, description=None, trials=(), problem="ValueError: <b>no</b>", memory=None)
    page = Page(html.render(undescribed))
    assert "ValueError: <b>no</b>" in page.words
    assert (page.count("table"), page.figures, page.count("div", role="img")) == (0, {}, 0)


def test_what_a_tune_does_not_have_is_not_shown(record):
    cpu = on_cpu(record)
    assert not {"workers", "queue", "device"} & set(re.findall("<th[^>]*>([^<]*)<", html.compact(cpu)))
    assert "device memory" not in traces(plots.memory(cpu))
    first = record.trials[0]
    assert "throughput" in Page(html.render(with_fields(record, trials=(first,), runs=(), config=first.config))).figures
    no_batch = with_fields(record, config=FitConfig(), trials=(replace(first, config=FitConfig()),), runs=())
    assert Page(html.render(no_batch)).figures == {}


def test_a_knob_that_could_not_be_tuned_is_named_in_every_output(record):
    reason = "your code runs with 32 only (ValueError: made up)"
    fixed = with_fields(record, description=replace(record.description, untuned={"batch_size": reason}))
    for text in (Page(html.render(fixed)).words, html.compact(fixed), str(Result(**vars(fixed)))):
        assert f"batch_size: {reason}" in " ".join(text.split())


def test_a_sweep_is_a_plot_and_a_table_of_its_cells(record, failed_tune, sweep):
    hostile = (
        Cell({"model_kwargs.width": 64, "data_kwargs.size": HOSTILE}, record),
        Cell({"model_kwargs.width": 24, "data_kwargs.size": "s"}, failed_tune, failed_tune.problem),
        Cell({"model_kwargs.width": 128, "data_kwargs.size": "s"}, None, HOSTILE),
    )
    text = html.render(replace(sweep, cells=(*sweep.cells, *hostile)))
    page = Page(text)
    assert (text.count("plotly.js v"), page.count("img")) == (1, 0)
    for shown in ("does not fit", "failed", "waiting", failed_tune.problem, "2001-09-09", str(record.config)):
        assert shown in page.words
    assert (page.count("table"), page.count("tr"), page.count("div", role="img")) == (1, 1 + 6, 1)
    (figure,) = page.figures.values()
    assert len(figure["data"][0]["y"]) == 2
    assert "<img" not in json.dumps(figure)
    go.Figure(figure)
    assert Page(html.render(replace(sweep, cells=sweep.cells[1:]))).figures == {}


def test_readings_that_are_no_numbers_do_not_break_the_page(record):
    damaged = [
        replace(trial, measurement=replace(trial.measurement, samples_per_second=rate))
        for trial, rate in zip(record.trials, (float("nan"), float("inf")), strict=False)
    ]
    figures = Page(html.render(with_fields(record, trials=(*damaged, *record.trials[2:])))).scripts["script", "figures"]
    assert not re.search("NaN|Infinity", figures)
    assert not set("<>") & set(figures)


def test_a_notebook_shows_the_answers_without_scripts(two_answers):
    page = Page(Result(**vars(two_answers))._repr_html_())
    assert {"script", "style", "link"}.isdisjoint(tag for tag, _ in page.tags)
    for answer in choice.answers(two_answers):
        assert str(answer.config) in page.words
        assert " ".join(snippet.render(two_answers, answer).split()) in page.words
    assert page.count("tr") == 1 + len(two_answers.trials) + len(two_answers.runs)


def test_results_and_the_command_write_pages(record, failed_tune, tmp_path):
    Result(**vars(record)).report(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
    with pytest.raises(UsageError, match="No such file"):
        html.save(record, tmp_path / "nowhere" / "page.html")
    result_files.save(record, tmp_path / "result.json")
    result_files.save(failed_tune, tmp_path / "none.json")
    for arguments, page, text in (
        (["result.json"], "result.html", str(record.config)),
        (["none.json", "-o", tmp_path / "other.html"], "other.html", failed_tune.problem),
    ):
        done = CliRunner().invoke(app, ["report", str(tmp_path / arguments[0]), *map(str, arguments[1:])])
        assert done.exit_code == 0, done.output
        assert text in (tmp_path / page).read_text()
