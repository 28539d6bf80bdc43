"""Where the cells of a sweep are tuned, by name; and when the sweep is saved."""

import importlib
import io
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from rich.console import Console
from typer.testing import CliRunner

import autofit
from autofit.cli import app
from autofit.errors import UsageError
from autofit.records.sweep import Cell, SweepRecord
from autofit.report.console.progress import Progress
from autofit.tuning.cells import CellEnded, tuned
from autofit.tuning.tuner import tune
from tests.fakes import FakeLauncher, collect, make_request

MODULE = importlib.import_module("autofit.api.sweep")  # the name `autofit.api.sweep` is the function


class Mine:
    """An executor of one's own, which tunes at once."""

    def __init__(self, tune_cell):
        self.tune_cell = tune_cell

    def start(self, cells, report):
        self.cells = cells
        return [self.answered(cell) for cell in cells]

    def answered(self, cell):
        future = Future()
        future.set_result(tuned(self.tune_cell, cell, len, None))
        return future

    def close(self):
        self.cells = ()


def build_model(width=8):
    """Not called."""


def make_data(batch_size):
    """Not called."""


def test_a_sweep_takes_an_executor_of_the_users_own(tmp_path, monkeypatch):
    record = collect(tune, make_request(tmp_path), FakeLauncher())[1]
    asked = []

    def run_tune(workload, settings, progress, *, fresh, wait, cancelled):
        asked.append((workload.model_kwargs["width"], fresh, wait))
        return record

    monkeypatch.setattr(MODULE, "run_tune", run_tune)
    saved = []
    result = autofit.sweep(
        build_model,
        make_data,
        {"model_kwargs.width": [8, 16]},
        executor=Mine,
        fresh=True,
        progress=False,
        save=saved.append,
    )
    assert asked == [(8, True, True), (16, True, True)]
    assert [cell.tune for cell in result.cells] == [record, record]
    assert saved[-1] == result


def test_cells_that_follow_each_other_show_no_count_of_cells_side_by_side(tmp_path, monkeypatch):
    record = collect(tune, make_request(tmp_path), FakeLauncher())[1]
    monkeypatch.setattr(MODULE, "run_tune", lambda *_, **__: record)
    monkeypatch.setattr(MODULE, "slots_of", lambda *_: ())
    shown = Console(file=io.StringIO(), force_terminal=True, color_system=None)
    autofit.sweep(build_model, make_data, {"model_kwargs.width": [8]}, progress=Progress(shown))
    assert "cell 1 of 1: width 8" in shown.file.getvalue()
    assert "waiting" not in shown.file.getvalue()


@pytest.mark.parametrize(
    ("arguments", "key", "mentioned"),
    [
        ({"executor": "rays"}, "executor", "'rays'"),
        ({"ship": "."}, "ship", "Ray"),
        ({"ship": ".", "executor": Mine}, "ship", "Ray"),
        ({"jobs": 2, "executor": Mine}, "jobs", "this machine"),
        ({"jobs": 1, "executor": "ray"}, "jobs", "this machine"),
        ({"jobs": 1, "executor": "ray://host:10001"}, "jobs", "this machine"),
        ({"host_labels": {"region": 3}}, "host_labels", "{'region': 3}"),
        ({"host_labels": {"region": "eu"}}, "host_labels", "cluster"),
    ],
)
def test_an_argument_that_does_not_fit_the_executor_is_one_clear_error(arguments, key, mentioned):
    with pytest.raises(UsageError) as raised:
        autofit.sweep(build_model, make_data, {"model_kwargs.width": [8]}, progress=False, **arguments)
    assert raised.value.key == key
    assert mentioned in raised.value.problem


def test_the_command_names_its_own_options(tmp_path):
    (tmp_path / "model.py").write_text("def build_model(width=8):\n    pass\n\n\ndef data(batch_size):\n    pass\n")
    text = "build_model: model.py:build_model\ndata: model.py:data\n"
    (tmp_path / "sweep.yaml").write_text(f"{text}matrix: {{model_kwargs.width: [4]}}\n")
    (tmp_path / "tune.yaml").write_text(f"{text}host_labels: {{region: eu}}\n")
    done = CliRunner().invoke(
        app, ["sweep", str(tmp_path / "sweep.yaml"), "--on", "rays", "--output", f"{tmp_path}/s.json"]
    )
    assert (done.exit_code, done.stderr.partition("; ")[0]) == (2, "autofit: --on: 'rays' is not allowed")
    done = CliRunner().invoke(
        app, ["sweep", str(tmp_path / "sweep.yaml"), "--on", "ray", "--jobs", "2", "--output", f"{tmp_path}/s.json"]
    )
    assert (done.exit_code, done.stderr.split(":")[1].strip()) == (2, "--jobs")
    done = CliRunner().invoke(app, ["tune", str(tmp_path / "tune.yaml")])
    assert done.exit_code == 2
    assert "tune.yaml:3:1: host_labels: " in done.stderr
    done = CliRunner().invoke(app, ["check", str(tmp_path / "tune.yaml")])
    assert done.exit_code == 2


def test_a_file_that_is_slow_to_write_is_written_less_often(tmp_path, monkeypatch):
    record = collect(tune, make_request(tmp_path), FakeLauncher())[1]
    now, saved = [100.0], []

    def cells_that_take_a_second(title, requests, executor):
        for index, request in enumerate(requests):
            now[0] += 1.0
            cell = Cell(request.values, record)
            yield CellEnded(
                index,
                cell,
                SweepRecord(
                    title=title, cells=(cell,) * (index + 1), machine=record.machine, seconds=now[0], started_at=0.0
                ),
            )

    def save(result):
        saved.append(len(result.cells))
        now[0] += 2.0

    monkeypatch.setattr(MODULE, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(MODULE, "tune_cells", cells_that_take_a_second)
    widths = {"model_kwargs.width": list(range(100))}
    for _ in range(2):
        autofit.sweep(build_model, make_data, widths, executor=Mine, progress=False, save=save)
    assert saved == [1, 41, 81, 100] * 2  # 2 s of 40
