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
from autofit.records.result import Cell, SweepRecord
from autofit.records.states import Outcome
from autofit.records.trial import Evidence, FitConfig, Measurement, Trial
from autofit.report import choice, snippet
from autofit.report.html import page as html
from autofit.report.html import plots
from autofit.storage import result_files
from tests.fakes import DESCRIPTION, MACHINE, MIB, with_fields

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

    @property
    def ids(self):
        return {has["id"] for _, has in self.tags if "id" in has}


def traces(plot):
    """The traces of a plot by their names; plotly checks all of it."""
    return {trace.name: trace for trace in go.Figure(plot.figure).data}


def bare(record):
    """The record of an input that takes the batch size alone."""

    def strip(trial):
        return replace(trial, config=FitConfig(trial.config.batch_size))

    return with_fields(
        record,
        config=FitConfig(record.config.batch_size),
        trials=tuple(strip(t) for t in record.trials),
        runs=tuple(strip(run) for run in record.runs),
        description=replace(DESCRIPTION, knobs={"batch_size": "batch_size"}, input_kind="arrays"),
    )


def on_cpu(record):
    """The record of a device that has no memory of its own."""

    def strip(trial):
        return replace(trial, measurement=replace(trial.measurement, device_peak_bytes=None))

    ran = tuple(strip(t) for t in record.trials if t.measurement.outcome is Outcome.OK)
    return with_fields(record, trials=ran, limits=replace(record.limits, device_bytes=None), device_peak_bytes=None)


def test_the_answers_stand_on_top_with_the_workload_their_figures_and_the_lines_to_paste(two_answers):
    page = Page(html.render(two_answers))
    order = [
        "build_model on Photos",
        "build_model(width=8)",
        "Photos(folder='photos')",
        "Tesla T4",
        "keras 3",
        "1.48x",
        "2.22x",
    ]
    positions = [page.words.index(text) for text in (*order, "Throughput against batch size")]
    assert positions == sorted(positions)
    for answer in choice.answers(two_answers):
        assert " ".join(snippet.render(two_answers, answer).split()) in page.words
        assert str(answer.config) in page.words
    assert page.count("div", **{"class": "snippet"}) == 2
    for text in ("% free", two_answers.bottleneck, "2001-09-09"):
        assert text in page.words


def test_one_answer_has_one_headline(record):
    page = Page(html.render(record))
    assert page.count("div", **{"class": "snippet"}) == page.count("section", **{"class": "answer"}) == 1


def test_every_plot_that_is_placed_has_its_figure(record):
    page = Page(html.render(record))
    placed = {has["data-plot"] for _, has in page.tags if "data-plot" in has}
    assert placed == set(page.figures) == {"throughput", "memory"}
    assert all(figure["data"] for figure in page.figures.values())


def test_the_page_loads_nothing(record):
    text = html.render(record)
    assert Page(text).loads == ["data:,"]
    own = (html._TEMPLATES / "page.css").read_text() + (html._TEMPLATES / "page.js").read_text()
    assert not re.search(r"https?:|@import|url\(", own)
    assert text.count("plotly.js v") == 1


def test_every_trial_and_run_is_a_row_with_its_details(two_answers):
    page = Page(html.render(two_answers))
    rows = len(two_answers.trials) + len(two_answers.runs)
    assert page.count("input", type="checkbox") == page.count("tr", **{"class": "detail"}) == rows
    assert page.count("tr", **{"class": "chosen"}) == 2 + 2 * 3  # the trials and runs of both answers
    assert "device full" in page.words
    assert page.words.count("device OOM") == sum(t.measurement.outcome is Outcome.DEVICE_OOM for t in two_answers.trials)


def test_what_the_users_code_wrote_cannot_become_part_of_the_page(record):
    evidence = Evidence(HOSTILE, log_tail=(HOSTILE, "second line"))
    broken = Trial(record.config, Measurement(Outcome.CRASHED, evidence, 1.0, traceback=HOSTILE), why=HOSTILE)
    record = with_fields(record, trials=(*record.trials, broken), machine=replace(MACHINE, host=HOSTILE))
    clean, text = Page(html.render(record)), html.render(record)
    page = Page(text)
    assert page.count("script") == clean.count("script")
    assert page.count("img") == 0
    assert HOSTILE in "\n".join(page.text)
    figures = json.dumps(page.figures)
    assert "&lt;img" in figures
    assert "<img" not in figures
    assert "<script" not in html.compact(record)


def test_throughput_is_drawn_with_both_ceilings_the_answers_the_baseline_and_what_failed(two_answers):
    record = two_answers
    drawn = traces(plots.throughput(record))
    assert {"model alone", "input alone", "out of memory"} <= set(drawn)
    assert drawn["model alone"].line.dash != drawn["input alone"].line.dash
    fits = [trial for trial in record.trials if trial.fits(record.limits)]
    measured = {t.config.batch_size: t.measurement.compute_samples_per_second for t in fits}
    assert dict(zip(drawn["model alone"].x, drawn["model alone"].y, strict=True)) == measured
    marks = [drawn["baseline"], drawn["at your batch"], drawn["fastest"]]
    assert [(list(mark.x), list(mark.y)) for mark in marks] == [([32], [900.0]), ([32], [4000.0 / 3]), ([64], [2000.0])]
    assert len({(mark.marker.symbol, mark.marker.color) for mark in marks}) == 3
    assert [round(mark.error_y.array[0]) for mark in marks[1:]] == [
        41,
        62,
    ]  # the made-up runs of the baseline do not differ


def test_an_interval_that_says_nothing_and_an_answer_without_runs_are_drawn_as_what_they_are(two_answers):
    wide = with_fields(two_answers, spread=40.0, confirmed=False)
    fastest = traces(plots.throughput(wide))["fastest, not confirmed"]
    assert fastest.error_y.array is None
    alone = replace(two_answers, runs=())
    assert "baseline" not in traces(plots.throughput(alone))


def test_every_point_of_a_rate_is_one_trial_whose_hover_names_its_workers(record):
    plot = plots.throughput(record)
    rated = [t for t in record.trials if t.measurement.samples_per_second]
    points = [(x, y) for n, t in traces(plot).items() if n.startswith("trials") for x, y in zip(t.x, t.y, strict=True)]
    assert sorted(points) == sorted((t.config.batch_size, t.measurement.samples_per_second) for t in rated)
    others = traces(plot)["trials with other settings"]
    assert all(any(str(t.config) in text for t in rated) for text in others.hovertext)


def test_trials_with_other_steps_in_a_call_are_not_on_the_line_of_the_choice(record):
    first, *rest = (t for t in record.trials if t.config == record.config or t.measurement.samples_per_second)
    other = replace(first, config=replace(record.config, steps_per_execution=8))
    drawn = traces(plots.throughput(with_fields(record, trials=(other, *rest))))
    assert other.measurement.samples_per_second in drawn["trials with other settings"].y


@pytest.mark.parametrize(("fast", "part"), [("compute", "model alone"), ("input", "input alone")])
def test_the_caption_names_a_ceiling_above_the_plot(record, fast, part):
    def far(trial):
        m = trial.measurement
        rate = m.samples_per_second
        rates = {"compute_samples_per_second": rate, "input_samples_per_second": rate}
        faster = {**rates, f"{fast}_samples_per_second": 100_000.0}
        return trial if rate is None else replace(trial, measurement=replace(m, **faster))

    plot = plots.throughput(with_fields(record, trials=tuple(far(t) for t in record.trials)))
    assert re.search(rf"{part} reaches [0-9,]+ samples/s", plot.caption)
    assert plot.caption.count("samples/s") == 1
    assert "samples/s" not in plots.throughput(record).caption
    assert 10 ** plot.figure["layout"]["yaxis"]["range"][1] < 10_000


def test_memory_is_drawn_as_shares_of_the_limits_with_out_of_memory_points(two_answers):
    plot = plots.memory(two_answers)
    drawn = traces(plot)
    chosen = two_answers.fastest
    shares = [
        chosen.device_peak_bytes / two_answers.limits.device_bytes,
        chosen.host_peak_bytes / two_answers.limits.host_bytes,
    ]
    assert (list(drawn["fastest"].x), list(drawn["fastest"].y)) == ([64, 64], shares)
    assert (64, shares[0]) in zip(drawn["device memory"].x, drawn["device memory"].y, strict=True)
    assert list(drawn["out of device memory"].y) == [1.0, 1.0]
    assert "device full" in drawn["out of device memory"].hovertext[0]
    assert list(drawn["limit"].y) == [1.0, 1.0]
    assert {"baseline", "at your batch", "host memory"} <= set(drawn)
    assert "150 MiB" in plot.caption
    roomy = replace(two_answers, limits=replace(two_answers.limits, device_bytes=4096 * MIB))
    calm = plots.memory(replace(roomy, trials=tuple(t for t in roomy.trials if t.fits(roomy.limits))))
    assert "limit" not in traces(calm)
    assert calm.figure["layout"]["yaxis"]["range"][1] < 0.5


def test_nothing_fits_shows_why_and_the_trials(failed_tune):
    page = Page(html.render(failed_tune))
    assert page.words.count(failed_tune.problem) == 1
    assert set(page.figures) == {"memory"}
    assert page.count("tr", **{"class": "detail"}) == len(failed_tune.trials)
    assert page.count("div", **{"class": "snippet"}) == 0


def test_a_workload_that_could_not_even_be_described_has_a_page(failed_tune):
    traceback = "your code failed while building the model:\n\nValueError: <b>no</b>"
    record = replace(failed_tune, description=None, trials=(), problem=traceback, memory=None, needed_bytes=None)
    page = Page(html.render(record))
    assert "ValueError: <b>no</b>" in page.words
    assert page.count("table") == 0
    assert page.figures == {}
    assert page.count("div", role="img") == 0


def test_knobs_that_the_input_does_not_take_are_not_shown(record):
    assert not {"workers", "queue"} & set(re.findall("<th[^>]*>([^<]*)<", html.compact(bare(record))))
    no_batch = with_fields(record, config=FitConfig(), trials=(replace(record.trials[0], config=FitConfig()),), runs=())
    assert Page(html.render(no_batch)).figures == {}


def test_a_cpu_without_device_memory_is_drawn_by_its_host_memory(record):
    assert "device memory" not in traces(plots.memory(on_cpu(record)))


def test_one_trial_is_a_page(record):
    first = record.trials[0]
    one = with_fields(record, trials=(first,), runs=(), config=first.config)
    page = Page(html.render(one))
    assert "throughput" in page.figures


def test_a_knob_that_could_not_be_tuned_is_named_in_every_output(record):
    reason = "your code runs with 32 only (ValueError: made up)"
    fixed = with_fields(record, untuned={"batch_size": reason})
    page = Page(html.render(fixed))
    for text in (page.words, html.compact(fixed), str(Result(**vars(fixed)))):
        words = " ".join(text.split())
        assert "batch_size" in words
        assert reason in words


def test_a_sweep_is_a_plot_and_a_table_of_its_cells(record, failed_tune, sweep):
    hostile = (
        Cell({"model_kwargs.width": 64, "data_kwargs.size": HOSTILE}, record),
        Cell({"model_kwargs.width": 24, "data_kwargs.size": "s"}, failed_tune, failed_tune.problem),
        Cell({"model_kwargs.width": 128, "data_kwargs.size": "s"}, None, HOSTILE),
    )
    text = html.render(replace(sweep, cells=(*sweep.cells, *hostile)))
    page = Page(text)
    assert text.count("plotly.js v") == 1
    assert page.count("img") == 0
    for shown in ("does not fit", "failed", "waiting", failed_tune.problem, "2001-09-09", str(record.config)):
        assert shown in page.words
    assert (page.count("table"), page.count("tr"), page.count("div", role="img")) == (1, 1 + 6, 1)
    (figure,) = page.figures.values()
    assert len(figure["layout"]["yaxis"]["categoryarray"]) == 5
    assert "<img" not in json.dumps(figure)
    go.Figure(figure)


def test_a_sweep_without_an_answer_draws_nothing():
    cells = (Cell({"model_kwargs.width": 8}, None, "ValueError: no"),)
    page = Page(html.render(SweepRecord(title="widths", cells=cells, machine=MACHINE, seconds=6.0, started_at=0.0)))
    assert page.figures == {}


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


def test_a_result_writes_its_report_and_says_where_it_cannot(record, tmp_path):
    Result(**vars(record)).report(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
    with pytest.raises(UsageError, match="No such file"):
        html.save(record, tmp_path / "nowhere" / "page.html")


def test_the_command_writes_beside_the_result_or_where_it_is_told(record, failed_tune, tmp_path):
    result_files.save(record, tmp_path / "result.json")
    result_files.save(failed_tune, tmp_path / "none.json")

    def run(*arguments):
        return CliRunner().invoke(app, ["report", *map(str, arguments)])

    assert run(tmp_path / "result.json").exit_code == 0
    assert str(record.config) in (tmp_path / "result.html").read_text()
    assert run(tmp_path / "none.json", "-o", tmp_path / "other.html").exit_code == 0
    assert failed_tune.problem in (tmp_path / "other.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.json"], "cannot be read: No such file"),
        (["other.json"], "is not a result of autofit"),
        (["other.json", "-o", "."], "is a folder; name a file in it"),
        (["other.json", "-o", "other.json"], "is the result itself; name another file"),
    ],
)
def test_the_command_says_what_is_wrong(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.json").write_text("[]")
    done = CliRunner().invoke(app, ["report", *arguments])
    assert done.exit_code == 2
    assert message in done.output
    assert (tmp_path / "other.json").read_text() == "[]"
