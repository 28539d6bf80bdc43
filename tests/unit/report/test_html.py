import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

from autofit.api.result import Result
from autofit.cli import app
from autofit.errors import UsageError
from autofit.records.states import Outcome
from autofit.records.sweep import Cell, SweepRecord
from autofit.records.trial import Evidence, FitConfig, Measurement, Trial
from autofit.report import snippet
from autofit.report.html import page as html
from autofit.report.html import plots, style
from autofit.report.html.style import MemoryScale
from autofit.storage import result_files
from tests.fakes import DESCRIPTION, MACHINE, MIB, with_fields
from tests.unit.report.conftest import shown_cells
from tests.unit.report.snapshots import matches_snapshot

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

    @property
    def lines(self):
        """The text of the page, a line for each element."""
        return "\n".join(" ".join(text.split()) for text in self.text if text.strip())


def traces(plot):
    """The traces of a plot by their names."""
    return {trace.name: trace for trace in plot.figure.data}


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


def test_the_answer_stands_on_top_with_its_figures_and_the_lines_to_paste(record):
    page = Page(html.render(record))
    assert page.words.index(str(record.config)) < page.words.index("Throughput against batch size")
    assert f"{record.speedup.ratio:.2f}x" in page.words
    assert "% free" in page.words
    assert record.bottleneck in page.words
    assert " ".join(snippet.render(record).split()) in page.words
    assert "2001-09-09" in page.words


@pytest.mark.parametrize("name", ["tune", "failed", "sweep"])
def test_the_words_of_a_page(name, record, failed_tune, sweep):
    shown = {"tune": record, "failed": failed_tune, "sweep": sweep}[name]
    assert matches_snapshot(Page(html.render(shown)).lines, f"{name}_page.txt")


def test_every_plot_that_is_placed_has_its_figure(record):
    page = Page(html.render(record))
    placed = {has["data-plot"] for _, has in page.tags if "data-plot" in has}
    assert placed == set(page.figures) == {"throughput", "memory-device", "memory-host"}
    assert all(figure["data"] for figure in page.figures.values())


def test_the_page_loads_nothing(record):
    text = html.render(record)
    assert Page(text).loads == ["data:,"]
    own = (html._TEMPLATES / "report.css").read_text() + (html._TEMPLATES / "report.js").read_text()
    assert not re.search(r"https?:|@import|url\(", own)
    assert text.count("plotly.js v") == 1


def test_every_trial_and_run_is_a_row_with_its_details(record):
    page = Page(html.render(record))
    rows = len(record.trials) + len(record.runs)
    assert page.count("button", **{"aria-expanded": "false"}) == rows
    assert page.count("tr", **{"class": "detail"}) == rows
    assert "device full" in page.words
    assert page.words.count("device OOM") == sum(t.measurement.outcome is Outcome.DEVICE_OOM for t in record.trials)


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


def test_throughput_is_drawn_with_both_ceilings_the_choice_and_what_failed(record):
    drawn = traces(plots.throughput(record))
    assert {"model alone", "input alone", "chosen, confirmed", "out of memory"} <= set(drawn)
    assert list(drawn["chosen, confirmed"].x) == [record.config.batch_size]
    assert drawn["model alone"].line.dash != drawn["input alone"].line.dash
    measured = {
        t.config.batch_size: t.measurement.compute_samples_per_second for t in record.trials if t.fits(record.limits)
    }
    assert dict(zip(drawn["model alone"].x, drawn["model alone"].y, strict=True)) == measured
    chosen = next(t for t in record.trials if t.config == record.config)
    assert list(drawn["input alone"].y) == [chosen.measurement.input_samples_per_second]


def test_every_point_of_a_rate_is_one_trial_whose_hover_names_its_workers(record):
    plot = plots.throughput(record)
    rated = [t for t in record.trials if t.measurement.samples_per_second]
    points = [(x, y) for t in plot.figure.data if t.name.startswith("trials") for x, y in zip(t.x, t.y, strict=True)]
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
    assert plot.figure.layout.yaxis.range[1] < 10_000


def test_memory_is_drawn_with_its_limit_and_out_of_memory_points(record):
    drawn = traces(plots.memory(record, "device"))
    assert set(drawn) >= {"limit 150 MiB", "out of memory"}
    chosen = next(t for t in record.trials if t.config == record.config)
    (same,) = [trace for name, trace in drawn.items() if name.endswith("4 threads, queue 32")]
    assert (list(same.x), list(same.y)) == ([64], [chosen.measurement.device_peak_bytes / MIB])
    assert set(drawn["limit 150 MiB"].y) == {150.0}
    assert "device full" in drawn["out of memory"].hovertext[0]
    host = plots.memory(record, "host")
    assert not [name for name in traces(host) if name.startswith("limit")]
    assert "8.00 GiB" in host.caption


def test_a_scale_of_memory_reaches_to_the_limit_unless_that_is_far():
    near = MemoryScale.of(100 * MIB, 150 * MIB)
    assert (near.unit, near.is_limit_drawn) == ("MiB", True)
    assert near.top == pytest.approx(150 * style.HEADROOM)
    far = MemoryScale.of(2048 * MIB, 8192 * MIB)
    assert (far.unit, far.is_limit_drawn, far.limit_line([0, 1])["x"]) == ("GiB", False, [])
    assert far.top == pytest.approx(2 * style.HEADROOM)
    assert MemoryScale.of(10 * MIB, None).top == pytest.approx(10 * style.HEADROOM)


def test_nothing_fits_shows_why_what_was_needed_and_the_trials(failed_tune):
    page = Page(html.render(failed_tune))
    assert page.words.count(failed_tune.problem) == 1
    assert "11.0 MiB" in page.words
    assert "10.0 MiB" in page.words
    assert "machine" in page.ids
    assert set(page.figures) == {"memory-device"}
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
    page = Page(html.render(bare(record)))
    assert page.count("th", **{"data-name": "workers"}) == page.count("th", **{"data-name": "queue"}) == 0
    no_batch = with_fields(record, config=FitConfig(), trials=(replace(record.trials[0], config=FitConfig()),))
    assert Page(html.render(no_batch)).figures == {}


def test_a_cpu_without_device_memory_is_drawn_by_its_host_memory(record):
    record = on_cpu(record)
    page = Page(html.render(record))
    assert "memory-device" not in page.figures


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


def test_a_sweep_is_a_table_of_its_cells_each_with_its_answer(record, failed_tune, sweep):
    hostile = (
        Cell({"model_kwargs.width": 64, "data_kwargs.size": HOSTILE}, record),
        Cell({"model_kwargs.width": 24, "data_kwargs.size": "s"}, failed_tune),
        Cell({"model_kwargs.width": 128, "data_kwargs.size": "s"}, None, HOSTILE),
    )
    text = html.render(replace(sweep, cells=(*sweep.cells, *hostile)))
    page = Page(text)
    assert text.count("plotly.js v") == 1
    assert page.count("img") == 0
    for shown in ("does not fit", "failed", "waiting", failed_tune.problem, "2001-09-09", str(record.config)):
        assert shown in page.words
    assert page.count("div", **{"class": "snippet"}) == 2
    (figure,) = page.figures.values()
    assert len(figure["layout"]["yaxis"]["categoryarray"]) == 5
    assert "<img" not in json.dumps(figure)


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


def test_no_two_elements_have_the_same_name(record, failed_tune):
    cells = (Cell({"width": 8}, record), Cell({"width": 16}, failed_tune), Cell({"width": 32}, record))
    sweep = SweepRecord(title="widths", cells=cells, machine=MACHINE, seconds=60.0, started_at=1e9)
    for shown in (record, failed_tune, sweep):
        page = Page(html.render(shown))
        names = [has["id"] for _, has in page.tags if "id" in has]
        assert len(names) == len(set(names)) > 3
        controlled = [has["aria-controls"] for _, has in page.tags if "aria-controls" in has]
        assert set(controlled) <= set(names)


def test_a_notebook_shows_the_answer_without_scripts(record):
    result = Result(**vars(record))
    page = Page(result._repr_html_())
    assert {"script", "style", "link"}.isdisjoint(tag for tag, _ in page.tags)
    assert str(record.config) in page.words
    assert f"{record.speedup.ratio:.2f}x" in page.words
    assert " ".join(snippet.render(record).split()) in page.words
    assert page.count("tr") >= len(record.trials)


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


def test_an_axis_that_is_called_as_a_column_keeps_its_whole_name():
    cell = Cell({"data_kwargs.seconds": 0.5, "model_kwargs.width": 8}, None, "your code failed")
    (row,) = shown_cells(SweepRecord(title="s", cells=(cell,), machine=MACHINE, seconds=1.0, started_at=0.0))
    assert row["data_kwargs.seconds"].text == "0.5"
    assert row["width"].text == "8"
    assert row["seconds"].text == "–"


def test_two_plots_of_memory_share_a_row_and_one_has_its_own(record):
    def wide(record):
        cards = [has for tag, has in Page(html.render(record)).tags if tag == "article"]
        return [card["id"] for card in cards if "wide" in card["class"].split()]

    assert wide(record) == ["throughput"]
    assert wide(on_cpu(record)) == ["throughput", "memory-host"]
