import itertools
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

from autofit.api.result import Result
from autofit.cli import app
from autofit.errors import AutofitError, UsageError
from autofit.records.result import Cell, FrontierPoint, SweepRecord
from autofit.records.trial import Evidence, FitConfig, Measurement, Outcome, Stage, Trial
from autofit.report import snippet
from autofit.report.html import batch_plots, sweep_cells, timeline, tradeoff_plots
from autofit.report.html import page as html
from autofit.storage import result_files
from autofit.tuning.tuner import tune
from tests.fakes import DESCRIPTION, MACHINE, MIB, FakeLauncher, collect, make_request, with_fields

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \"quoted\" 'too'"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """An answer found under a device limit, with trials that ran out of memory."""
    asked = make_request(tmp_path_factory.mktemp("tune"), device_bytes=150 * MIB, max_trials=10)
    record = collect(tune, asked, FakeLauncher(cliff=64))[1]
    assert any(t.measurement.outcome is Outcome.DEVICE_OOM for t in record.trials)
    return record


@pytest.fixture(scope="module")
def unanswered(tmp_path_factory):
    """A tune in which nothing fits."""
    asked = make_request(tmp_path_factory.mktemp("none"), device_bytes=10 * MIB)
    with pytest.raises(AutofitError) as caught:
        collect(tune, asked, FakeLauncher())
    return caught.value.tune


class Page(HTMLParser):
    """The parts of a page that its tests ask for."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.loads, self._open = [], [], [], None
        self.scripts = {}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        told = dict(attributes)
        self.tags.append((tag, told))
        self._open = (tag, told.get("id")) if tag in ("script", "style") else None
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
        return sum(t == tag and all(told.get(k) == v for k, v in attributes.items()) for t, told in self.tags)


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
        frontier=(FrontierPoint(FitConfig(), 64, 72),),
        description=replace(DESCRIPTION, knobs={"batch_size": "batch_size"}, input_kind="arrays"),
    )


def on_cpu(record):
    """The record of a device that has no memory of its own."""

    def strip(trial):
        return replace(trial, measurement=replace(trial.measurement, device_peak_bytes=None))

    ran = tuple(strip(t) for t in record.trials if t.measurement.outcome is Outcome.OK)
    return with_fields(record, trials=ran, limits=replace(record.limits, device_bytes=None), device_peak_bytes=None)


def test_the_answer_stands_on_top_with_its_figures_and_the_lines_to_paste(tuned):
    page = Page(html.render(tuned))
    assert page.words.index(str(tuned.config)) < page.words.index("Throughput against batch size")
    assert f"{tuned.speedup.ratio:.2f}×" in page.words
    assert "% free" in page.words
    assert "compute-bound: " in page.words
    assert " ".join(snippet.render(tuned).split()) in page.words
    assert "Tuned 20" in page.words


def test_every_plot_that_is_placed_has_its_figure(tuned):
    page = Page(html.render(tuned))
    placed = {told["data-plot"] for tag, told in page.tags if "data-plot" in told}
    assert placed == set(page.figures) == {
        "throughput", "memory-device", "memory-host", "frontier", "workers-threads", "workers-processes", "pareto",
        "timeline", "phases",
    }  # fmt: skip
    assert all(figure["data"] for figure in page.figures.values())


def test_the_page_loads_nothing(tuned):
    text = html.render(tuned)
    assert Page(text).loads == ["data:,"]
    own = (html._PAGES / "report.css").read_text() + (html._PAGES / "report.js").read_text()
    assert not re.search(r"https?:|@import|url\(", own)
    assert text.count("plotly.js v") == 1


def test_every_trial_and_run_is_a_row_with_its_details(tuned):
    page = Page(html.render(tuned))
    rows = len(tuned.trials) + len(tuned.runs)
    assert page.count("button", **{"aria-expanded": "false"}) == rows
    assert page.count("tr", **{"class": "detail"}) == rows
    assert "device full" in page.words
    assert page.words.count("device OOM") == sum(t.measurement.outcome is Outcome.DEVICE_OOM for t in tuned.trials)


def test_what_the_users_code_wrote_cannot_become_part_of_the_page(tuned):
    evidence = Evidence(HOSTILE, phase=HOSTILE, log_tail=(HOSTILE, "second line"))
    broken = Trial(tuned.config, Measurement(Outcome.CRASHED, evidence, 1.0, traceback=HOSTILE), why=HOSTILE)
    record = with_fields(tuned, trials=(*tuned.trials, broken), machine=replace(MACHINE, host=HOSTILE))
    clean, text = Page(html.render(tuned)), html.render(record)
    page = Page(text)
    assert page.count("script") == clean.count("script")
    assert page.count("img") == 0
    assert HOSTILE in "\n".join(page.text)
    told = json.dumps(page.figures)
    assert "&lt;img" in told
    assert "<img" not in told
    assert "<script" not in html.compact(record)


def test_throughput_is_drawn_with_both_ceilings_the_choice_and_what_failed(tuned):
    drawn = traces(batch_plots.throughput(tuned))
    assert {"predicted", "model alone", "input alone", "chosen, confirmed", "did not run to its end"} <= set(drawn)
    assert list(drawn["chosen, confirmed"].x) == [tuned.config.batch_size]
    assert drawn["model alone"].line.dash != drawn["input alone"].line.dash != drawn["predicted"].line.dash
    at_64 = list(drawn["model alone"].x).index(64)
    assert drawn["model alone"].y[at_64] == pytest.approx(4000 * 64 / (64 + 64), rel=0.05)  # the launcher's own formula
    assert drawn["input alone"].y[at_64] == pytest.approx(3600, rel=0.1)


@pytest.mark.parametrize(("fast", "told"), [("compute", "The model alone takes "), ("input", "The input alone makes ")])
def test_a_ceiling_that_is_above_what_is_drawn_is_told(tuned, fast, told):
    def far(trial):
        m = trial.measurement
        rate = m.samples_per_second
        rates = {"compute_samples_per_second": rate, "input_samples_per_second": rate}
        faster = {**rates, f"{fast}_samples_per_second": 100_000.0}
        return trial if rate is None else replace(trial, measurement=replace(m, **faster))

    plot = batch_plots.throughput(with_fields(tuned, trials=tuple(far(t) for t in tuned.trials)))
    assert plot.caption.count("above what is drawn") == 1
    assert told in plot.caption
    assert "above what is drawn" not in batch_plots.throughput(tuned).caption


def test_memory_is_drawn_with_its_prediction_bound_limit_and_out_of_memory_points(tuned):
    drawn = traces(batch_plots.memory(tuned, "device"))
    assert "tried only where nothing else is left" in batch_plots.memory(tuned, "device").caption
    assert set(drawn) >= {"predicted", "99 % bound", "limit 150 MiB", "out of memory"}
    assert all(upper >= e for e, upper in zip(drawn["predicted"].y, drawn["99 % bound"].y, strict=True))
    assert set(drawn["limit 150 MiB"].y) == {150.0}
    assert "device full" in drawn["out of memory"].hovertext[0]
    host = batch_plots.memory(tuned, "host")
    assert not [name for name in traces(host) if name.startswith("limit")]
    assert "The limit, 8.00 GiB, is far above and not drawn." in host.caption


def test_the_frontier_has_a_row_for_each_setting(tuned):
    plot = batch_plots.feasible(tuned)
    assert len(plot.figure.layout.yaxis.categoryarray) == len(tuned.frontier)
    failed = [t for t in tuned.trials if t.measurement.outcome.is_oom]
    assert sorted(traces(plot)["out of memory"].x) == sorted(t.config.batch_size for t in failed)


def test_the_map_says_the_best_rate_of_each_setting(tuned):
    threads, processes = tradeoff_plots.workers_by_queue(tuned)
    best = max(
        t.measurement.samples_per_second
        for t in tuned.trials
        if t.config.workers == 4 and t.config.max_queue_size == 32 and not t.config.use_multiprocessing
    )
    (heat,) = threads.figure.data
    assert heat.z[list(heat.y).index("4")][list(heat.x).index("32")] == best
    assert any("OOM" in set_attribute.text for set_attribute in processes.figure.layout.annotations)


def test_no_other_trial_beats_one_of_the_pareto_set(tuned):
    _, found = tradeoff_plots.pareto(tuned)
    assert tuned.config in {a.trial.config for a in found}
    fits = [t for t in tuned.trials if t.fits(tuned.limits)]
    for a in found:
        m = a.trial.measurement
        assert not [
            t for t in fits
            if t.measurement.samples_per_second > m.samples_per_second
            and t.measurement.device_peak_bytes <= m.device_peak_bytes
        ]  # fmt: skip
    assert [a.memory_bytes for a in found] == sorted(a.memory_bytes for a in found)


def at(trial, begun, seconds, **phases):
    return replace(trial, measurement=replace(trial.measurement, started_at=begun, seconds=seconds, phase_seconds=phases))


def test_pauses_between_runs_of_a_tune_are_cut_out_of_the_timeline(tuned):
    trials = tuned.trials[:3]
    early, late = (at(trials[0], 1000.0, 10.0), at(trials[1], 1011.0, 20.0)), at(trials[2], 90_010.0, 5.0)
    last = replace(at(trials[0], 90_015.0, 4.0), stage=Stage.BASELINE)
    record = with_fields(tuned, trials=(*early, late), runs=(last,), started_at=90_000.0, describing_seconds=8.0)
    bars, cut = timeline.lay_out(record)
    assert [bar.label for bar in bars] == ["trial 1", "trial 2", "describing", "trial 3", "baseline 1"]
    assert [bar.start for bar in bars] == [0.0, 11.0, 31.0, 41.0, 46.0]
    assert cut
    assert "pauses between are cut out" in timeline.timeline(record).caption


def test_the_time_is_told_by_phase(tuned):
    trial = at(tuned.trials[0], 100.0, 10.0, training=6.0, starting=4.0)
    record = with_fields(tuned, trials=(trial,), runs=(), started_at=90.0, describing_seconds=8.0, seconds=20.0)
    assert timeline.phases(record) == {
        "describing model and data": 8.0, "training": 6.0, "starting": 4.0, "between trials: fitting, choosing": 2.0,
    }  # fmt: skip


def test_nothing_fits_shows_why_what_was_needed_and_the_trials(unanswered):
    page = Page(html.render(unanswered))
    assert "Nothing fits" in page.words
    assert "11.0 MiB needed" in page.words
    assert "the limit is 10.0 MiB" in page.words
    assert "No trial ran to its end: no rate is known." in page.words
    assert set(page.figures) == {"memory-device", "memory-host", "frontier", "timeline", "phases"}
    assert page.count("tr", **{"class": "detail"}) == len(unanswered.trials)
    assert "To train with it" not in page.words


def test_a_workload_that_could_not_even_be_described_has_a_page(unanswered):
    traceback = "your code failed while building the model:\n\nValueError: <b>no</b>"
    record = replace(unanswered, description=None, trials=(), problem=traceback, memory=None, needed_bytes=None)
    page = Page(html.render(record))
    assert "The tune came to no configuration" in page.words
    assert "ValueError: <b>no</b>" in page.words
    assert "No trial was run" in page.words
    assert page.figures == {}
    assert page.count("div", role="img") == 0


def test_knobs_that_the_input_does_not_take_are_not_shown(tuned):
    page = Page(html.render(bare(tuned)))
    assert "Neither workers nor a queue are knobs of this input." in page.words
    assert not {name for name in page.figures if name.startswith("workers")}
    assert page.count("th", **{"data-name": "workers"}) == page.count("th", **{"data-name": "queue"}) == 0
    no_batch = with_fields(tuned, config=FitConfig(), trials=(replace(tuned.trials[0], config=FitConfig()),), frontier=())
    assert batch_plots.NO_BATCH in Page(html.render(no_batch)).words


def test_a_cpu_without_device_memory_is_drawn_by_its_host_memory(tuned):
    record = on_cpu(tuned)
    page = Page(html.render(record))
    assert "memory-device" not in page.figures
    assert page.figures["pareto"]["layout"]["xaxis"]["title"]["text"].startswith("peak of host memory")
    assert "not counted by this device" in page.words


def test_one_trial_is_a_page_without_curves(tuned):
    record = with_fields(
        tuned,
        trials=tuned.trials[:1],
        runs=(),
        frontier=tuned.frontier[:1],
        choice=replace(tuned.choice, config=tuned.trials[0].config),
    )
    page = Page(html.render(record))
    assert "Too few batch sizes ran for a curve between them." in page.words
    assert "One configuration ran within the limits" in page.words
    assert {trace.get("name") for trace in page.figures["throughput"]["data"]}.isdisjoint({"predicted", "model alone"})


def test_a_sweep_is_a_table_of_its_cells_each_with_its_answer(tuned, unanswered):
    cells = (
        Cell({"model_kwargs.width": 8, "data_kwargs.size": "s"}, tuned),
        Cell({"model_kwargs.width": 16, "data_kwargs.size": "s"}, unanswered),
        Cell({"model_kwargs.width": 32, "data_kwargs.size": "s"}, None, HOSTILE),
        Cell({"model_kwargs.width": 64, "data_kwargs.size": HOSTILE}, tuned),
        Cell({"model_kwargs.width": 128, "data_kwargs.size": "s"}),
    )
    text = html.render(SweepRecord(title="widths", cells=cells, machine=MACHINE, seconds=60.0, started_at=1e9))
    page = Page(text)
    assert text.count("plotly.js v") == 1
    assert page.count("img") == 0
    for told in ("does not fit", "failed", "waiting", "A batch of 1 needs 11.0 MiB", "2001-09-09", str(tuned.config)):
        assert told in page.words
    assert page.words.count("To train with it") == 2
    (figure,) = page.figures.values()
    assert len(figure["layout"]["yaxis"]["categoryarray"]) == 4
    assert "<img" not in json.dumps(figure)


def test_a_sweep_without_an_answer_draws_nothing():
    cells = (Cell({"model_kwargs.width": 8}, None, "ValueError: no"),)
    page = Page(html.render(SweepRecord(title="widths", cells=cells, machine=MACHINE, seconds=6.0, started_at=0.0)))
    assert page.figures == {}
    assert "No cell came to an answer" in page.words


def test_rates_that_are_no_numbers_do_not_break_the_page():
    assert json.loads(html._as_script({"x": [1.0, float("nan"), float("inf")], "y": "<"})) == {
        "x": [1.0, None, None],
        "y": "<",
    }


def test_nothing_in_the_data_of_the_plots_can_end_their_element():
    assert not set("<>&") & set(html._as_script({"x": HOSTILE}))


def test_no_two_elements_have_the_same_name(tuned, unanswered):
    cells = (Cell({"width": 8}, tuned), Cell({"width": 16}, unanswered), Cell({"width": 32}, tuned))
    sweep = SweepRecord(title="widths", cells=cells, machine=MACHINE, seconds=60.0, started_at=1e9)
    for record in (tuned, unanswered, sweep):
        page = Page(html.render(record))
        names = [told["id"] for _, told in page.tags if "id" in told]
        assert len(names) == len(set(names)) > 3
        controlled = [told["aria-controls"] for _, told in page.tags if "aria-controls" in told]
        assert set(controlled) <= set(names)


def test_a_notebook_shows_the_answer_without_scripts(tuned):
    result = Result(**vars(tuned))
    page = Page(result._repr_html_())
    assert {"script", "style", "link"}.isdisjoint(tag for tag, _ in page.tags)
    assert str(tuned.config) in page.words
    assert f"{tuned.speedup.ratio:.2f}×" in page.words
    assert " ".join(snippet.render(tuned).split()) in page.words
    assert page.count("tr") >= len(tuned.trials)


def test_a_result_writes_its_report_and_says_where_it_cannot(tuned, tmp_path):
    Result(**vars(tuned)).report(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
    with pytest.raises(UsageError, match="the report cannot be written: No such file"):
        html.save(tuned, tmp_path / "nowhere" / "page.html")


def test_the_command_writes_beside_the_result_or_where_it_is_told(tuned, unanswered, tmp_path):
    result_files.save(tuned, tmp_path / "result.json")
    result_files.save(unanswered, tmp_path / "none.json")

    def run(*arguments):
        return CliRunner().invoke(app, ["report", *map(str, arguments)])

    assert run(tmp_path / "result.json").exit_code == 0
    assert str(tuned.config) in (tmp_path / "result.html").read_text()
    assert run(tmp_path / "none.json", "-o", tmp_path / "other.html").exit_code == 0
    assert "Nothing fits" in (tmp_path / "other.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["missing.json"], "cannot be read: No such file"),
        (["other.json"], "is no result of autofit"),
        (["other.json", "-o", "."], "is a folder; name a file in it"),
        (["other.json", "-o", "other.json"], "is the result itself; name another file"),
    ],
)
def test_the_command_says_what_is_wrong(tmp_path, monkeypatch, arguments, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.json").write_text("[]")
    done = CliRunner().invoke(app, ["report", *arguments])
    assert done.exit_code == 2
    assert told in done.output
    assert (tmp_path / "other.json").read_text() == "[]"


def test_an_axis_that_is_called_as_a_column_keeps_its_whole_name():
    cell = Cell({"data_kwargs.seconds": 0.5, "model_kwargs.width": 8}, None, "your code failed")
    (row,) = sweep_cells.rows(SweepRecord(title="s", cells=(cell,), machine=MACHINE, seconds=1.0, started_at=0.0))
    assert row["data_kwargs.seconds"].text == "0.5"
    assert row["width"].text == "8"
    assert row["seconds"].text == "–"


def test_no_plot_stands_alone_in_a_row_of_two():
    halves = ["memory-device", "memory-host", "frontier", "workers-threads", "workers-processes"]
    names = ["throughput", *halves, "pareto", "timeline", "phases"]
    for count in range(1, len(names) + 1):
        for shown in itertools.combinations(names, count):
            wide = html.wide(shown)
            rows = "".join("W" if name in wide else "h" for name in shown)
            assert "h" not in rows.replace("hh", ""), shown
