"""Cells one after the other, or side by side where each has a device and cores of its own."""

import csv
import io
import os
import threading

import pytest
from rich.console import Console
from typer.testing import CliRunner

from autofit.cli import app
from autofit.errors import StorageError, UsageError, UserCodeError
from autofit.records.machine import Device
from autofit.records.result import TuneRecord
from autofit.report import wording
from autofit.report.console.sweep import print_sweep
from autofit.storage import result_files, sweep_files
from autofit.tuning import sweep
from autofit.tuning.settings import TuneSettings
from autofit.tuning.tuner import tune
from autofit.workload.workload import Workload
from tests.fakes import MIB, FakeLauncher, collect, make_request


def cell(values, device="auto", **model_kwargs):
    workload = Workload(len, len, model_kwargs=model_kwargs)
    return sweep.CellRequest(values, workload, TuneSettings(device=device))


GPUS = tuple(Device(n, f"GPU {n}", f"GPU-{n}", 2**34, 2**34) for n in range(2))


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    return collect(tune, make_request(tmp_path_factory.mktemp("tune"), device_bytes=150 * MIB), FakeLauncher())[1]


@pytest.fixture(scope="module")
def swept(record, tmp_path_factory):
    """A sweep with a cell of each kind."""

    def tune_cell(workload, settings, cancelled):
        if workload.model_kwargs["width"] == 16:
            raise UserCodeError("while building the model", "Traceback\nValueError: too wide")
        if workload.model_kwargs["width"] == 32:
            collect(tune, make_request(tmp_path_factory.mktemp("no"), device_bytes=5 * MIB), FakeLauncher())
        return record

    cells = [cell({"model_kwargs.width": width}, width=width) for width in (8, 16, 32)]
    return list(sweep.sweep("sweep.yaml", cells, tune_cell))


def test_a_cell_that_fails_or_does_not_fit_is_a_row(swept, record):
    cells = swept[-1].record.cells
    assert [cell.outcome for cell in cells] == ["ok", "failed", "does not fit"]
    assert cells[0].found == record
    assert "too wide" in cells[1].problem
    assert cells[2].found.needed_bytes == 11 * MIB
    assert [type(event).__name__ for event in swept] == ["CellBegins", "CellEnded"] * 3
    assert [cell.outcome for cell in swept[1].record.cells] == ["ok", "waiting", "waiting"]


def test_what_no_cell_can_help_ends_the_sweep():
    def tune_cell(workload, settings, cancelled):
        raise StorageError("the disk is full")

    with pytest.raises(StorageError):
        list(sweep.sweep("s", [cell({"a": 1}), cell({"a": 2})], tune_cell))


def test_a_sweep_is_saved_read_and_put_into_a_table(swept, tmp_path):
    record = swept[-1].record
    sweep_files.save(record, tmp_path / "sweep.json")
    assert sweep_files.load(tmp_path / "sweep.json") == record
    rows = list(csv.DictReader(io.StringIO((tmp_path / "sweep.csv").read_text())))
    assert [(row["model_kwargs.width"], row["outcome"]) for row in rows] == [
        ("8", "ok"), ("16", "failed"), ("32", "does not fit")
    ]  # fmt: skip  # one item a line would be longer, not clearer
    assert int(rows[0]["batch_size"]) == record.cells[0].found.config.batch_size
    assert float(rows[0]["samples_per_second"]) == record.cells[0].found.samples_per_second
    assert rows[2]["problem"].startswith("nothing fits: ")
    console = Console(width=80, file=io.StringIO(), highlight=False)
    print_sweep(record, console)
    text = console.file.getvalue()
    assert all(len(line) <= 80 for line in text.splitlines())
    for part in (
        "width",
        str(record.cells[0].found.config),
        "does not fit",
        "too wide",
        "3 cells: 1 ok, 1 does not fit, 1 failed",
    ):
        assert part in text
    with pytest.raises(UsageError, match=r"sweep\.json: is a sweep.* autofit show"):
        result_files.load(tmp_path / "sweep.json")


def test_a_saved_sweep_is_shown_as_its_table_and_a_result_as_itself(swept, record, tmp_path):
    sweep_files.save(swept[-1].record, tmp_path / "sweep.json")
    done = CliRunner().invoke(app, ["show", str(tmp_path / "sweep.json")])
    assert done.exit_code == 0, done.output
    console = Console(width=80, file=io.StringIO(), highlight=False)
    print_sweep(swept[-1].record, console)
    assert done.stdout == console.file.getvalue()
    result_files.save(record, tmp_path / "result.json")
    assert "To train with it" in CliRunner().invoke(app, ["show", str(tmp_path / "result.json")]).stdout
    result_files.save(swept[-1].record.cells[2].found, tmp_path / "none.json")
    refused = CliRunner().invoke(app, ["show", str(tmp_path / "none.json")])
    assert refused.exit_code == 2
    assert "none.json: " in refused.stderr
    assert "a batch of 1 needs 11.0 MiB" in refused.stderr


def test_a_result_is_read_as_one_and_damage_is_said(record, tmp_path):
    result_files.save(record, tmp_path / "result.json")
    assert isinstance(sweep_files.load(tmp_path / "result.json"), TuneRecord)
    (tmp_path / "broken.json").write_text('{"version": 2, "cells": [{}]}')
    with pytest.raises(UsageError, match=r"broken\.json: .*damaged"):
        sweep_files.load(tmp_path / "broken.json")


@pytest.mark.parametrize(
    ("axes", "names"),
    [
        (("model_kwargs.width", "device_memory"), ["width", "device_memory"]),
        (("model_kwargs.size", "data_kwargs.size"), ["model_kwargs.size", "data_kwargs.size"]),
        (("model_kwargs.pixels, data_kwargs.pixels",), ["pixels"]),
        (("model_kwargs.width, data_kwargs.size",), ["width = size"]),
    ],
)
def test_axes_are_called_by_their_last_part_where_that_tells_them_apart(axes, names):
    assert list(wording.short_names(axes).values()) == names


def test_cells_have_lanes_where_each_has_a_gpu_and_cores():
    assert sweep.lanes_of(None, GPUS, range(8)) == (
        sweep.Lane("gpu:0", (0, 1, 2, 3)),
        sweep.Lane("gpu:1", (4, 5, 6, 7)),
    )
    near = {GPUS[0].uuid: (4, 5, 6, 7), GPUS[1].uuid: (0, 1, 2, 3)}
    crossed = sweep.lanes_of(None, GPUS[:2], range(8), lambda gpu: near[gpu.uuid])
    assert [lane.cores for lane in crossed] == [(4, 5, 6, 7), (0, 1, 2, 3)]
    half_known = sweep.lanes_of(None, GPUS[:2], range(8), lambda gpu: (6, 7) if gpu is GPUS[0] else ())
    assert [lane.cores for lane in half_known] == [(0, 1, 6, 7), (2, 3, 4, 5)]
    assert sweep.lanes_of(1, GPUS, range(8)) == ()
    assert sweep.lanes_of(None, GPUS, range(1)) == ()
    assert sweep.lanes_of(None, (), range(8)) == ()
    with pytest.raises(UsageError, match=r"2 cells .* on one device.* 1 or less"):
        sweep.lanes_of(2, (), range(8))


def test_lanes_share_the_hosts_memory_and_have_their_own_device():
    lane = sweep.Lane("gpu:1", (1,))
    for host_memory, share in (("80%", "40%"), ("6GiB", "6GiB")):
        settings = TuneSettings(host_memory=host_memory)
        assert sweep.in_lane(settings, lane, 2) == TuneSettings(host_memory=share, device="gpu:1")


def test_cells_run_side_by_side_on_their_own_cores_and_those_for_the_cpu_alone(record):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core: no two lanes can have cores of their own")
    lanes = (sweep.Lane("gpu:0", (cores[0],)), sweep.Lane("gpu:1", (cores[1],)))
    both, seen = threading.Barrier(2, timeout=10), []

    def tune_cell(workload, settings, cancelled):
        if settings.device != "cpu":
            both.wait()  # two cells are here at the same time
        seen.append((settings.device, tuple(sorted(os.sched_getaffinity(0)))))
        return record

    cells = [cell({"n": 0}), cell({"n": 1}), cell({"n": 2}, device="cpu")]
    events = list(sweep.sweep("s", cells, tune_cell, lanes))
    assert sorted(seen[:2]) == [("gpu:0", (cores[0],)), ("gpu:1", (cores[1],))]
    assert seen[2] == ("cpu", tuple(cores))
    assert [cell.outcome for cell in events[-1].record.cells] == ["ok"] * 3


def test_an_error_in_a_lane_tells_the_others_to_stop(record):
    stopped = []

    def tune_cell(workload, settings, cancelled):
        if settings.device == "gpu:0":
            raise StorageError("the disk is full")
        stopped.append(cancelled.wait(timeout=10))
        return record

    lanes = tuple(sweep.Lane(f"gpu:{n}", tuple(os.sched_getaffinity(0))) for n in range(2))
    with pytest.raises(StorageError):
        list(sweep.sweep("s", [cell({"n": 0}), cell({"n": 1})], tune_cell, lanes))
    assert stopped == [True]
