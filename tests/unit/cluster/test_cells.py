"""The cells of a sweep, and the files and tables made from them.

The Ray task of a cell runs with a stand-in for Ray.
"""

import csv
import io
import os
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from autofit.api.result import SweepResult
from autofit.cli import app
from autofit.cluster import host, tasks
from autofit.cluster.cells import CellRequest, tune_cell
from autofit.errors import UsageError, UserCodeError
from autofit.records.result import SweepRecord
from autofit.storage import result_files
from autofit.tuning.settings import TuneSettings
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload
from tests import fakes
from tests.fakes import MIB

FEW = {
    "batch_size": [8, 32],
    "workers": [1],
    "max_queue_size": [10],
    "use_multiprocessing": [False],
}


def cell(workload=None, labels=None, width=8, **settings):
    values = {"model_kwargs.width": width}
    return CellRequest(
        values,
        workload or Workload(len, len),
        TuneSettings(**settings),
        host_labels=labels or {},
    )


@pytest.fixture
def swept(tmp_path):
    """A sweep with a cell of each kind."""

    def tune(cell):
        width = cell.values["model_kwargs.width"]
        if width == 16:
            raise UserCodeError(
                "while building the model", "Traceback\nValueError: too wide"
            )
        return fakes.tuned(
            tmp_path / str(width),
            device_bytes=(5 if width == 32 else 150) * MIB,
            space=FEW,
        )

    cells = tuple(tune_cell(tune, cell(width=width)) for width in (8, 16, 32))
    return SweepRecord(
        title="sweep.yaml",
        cells=cells,
        machine=fakes.MACHINE,
        seconds=9.0,
        started_at=1e9,
    )


def test_a_sweep_with_cells_that_fail_is_saved_read_and_shown_as_a_table(
    swept, tmp_path
):
    assert [cell.outcome for cell in swept.cells] == ["ok", "failed", "does not fit"]
    assert "too wide" in swept.cells[1].problem
    assert swept.cells[2].tune.needed_bytes == 5 * MIB
    path = tmp_path / "sweep.json"
    result = swept.cells[0].tune
    SweepResult(**vars(swept)).save(path)
    assert result_files.load(path) == swept
    rows = list(csv.DictReader(io.StringIO((tmp_path / "sweep.csv").read_text())))
    shown = [
        (
            row["model_kwargs.width"],
            row["outcome"],
            row["batch_size"],
            row["problem"][:14],
        )
        for row in rows
    ]
    assert shown == [
        ("8", "ok", str(result.config.batch_size), ""),
        ("16", "failed", "", swept.cells[1].problem[:14]),
        ("32", "does not fit", "", "nothing fits: "),
    ]
    with pytest.raises(UsageError, match=r"sweep\.json: .* autofit show"):
        result_files.tune_of(swept, path)
    table = CliRunner().invoke(app, ["show", str(path)]).stdout
    for part in (
        str(result.config),
        "too wide",
        "3 cells: 1 ok, 1 does not fit, 1 failed",
    ):
        assert part in table


def node(name="a", labels=None, **resources):
    return {
        "NodeID": name,
        "Alive": True,
        "Resources": {"measuring": 1.0, **resources},
        "Labels": labels or {},
    }


@pytest.mark.parametrize(
    ("gpus", "cores", "memory"),
    [
        (["1"], [2, 3], "20%"),
        (["2", "3"], [4, 5, 6, 7], "40%"),
        (["GPU-77"], None, "20%"),
        ([], None, "80%"),
    ],
)
def test_a_cell_has_the_cores_and_the_memory_of_its_gpus(
    monkeypatch, gpus, cores, memory
):
    pinned = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(
        os, "sched_setaffinity", lambda pid, cores: pinned.append(cores)
    )
    context = SimpleNamespace(
        get_node_id=lambda: "a", get_accelerator_ids=lambda: {"GPU": gpus}
    )
    ray = SimpleNamespace(
        nodes=lambda: [node(GPU=4.0)], get_runtime_context=lambda: context
    )
    for asked, shared in (("80%", memory), ("6GiB", "6GiB")):
        assert (
            host.on_own_share(ray, cell(host_memory=asked)).settings.host_memory
            == shared
        )
    assert pinned == ([] if cores is None else [cores] * 2)


@pytest.mark.parametrize(
    ("gpus", "labels", "lacking"),
    [
        (0, {}, None),
        (1, {"region": "eu"}, None),
        (2, {"region": "eu"}, "2 GPUs, region=eu"),
        (0, {"region": "!in(eu, us)"}, None),  # Ray knows
    ],
)
def test_cells_that_no_host_can_tune_wait_and_say_so(gpus, labels, lacking):
    notices = []
    nodes = [node(GPU=1.0), node("b", {"region": "eu"}, GPU=1.0)]
    tasks._check_hosts(nodes, [cell(labels=labels)] * 2, [gpus] * 2, notices.append)
    waiting = f"no host has {lacking}: cells that need it wait until such a host joins the cluster"
    assert notices == [
        "2 cells on 2 hosts of a Ray cluster",
        *([waiting] if lacking else []),
    ]
    with pytest.raises(UsageError, match="--resources="):
        tasks._check_hosts([{**node(), "Alive": False}], [cell()], [0], print)


def test_cells_take_a_gpu_where_the_cluster_has_some():
    devices = [
        (device, has_gpus)
        for device in ("auto", "2x gpu", "2x cpu")
        for has_gpus in (True, False)
    ]
    counts = [
        tasks._gpu_count(TuneSettings(device=device), has_gpus=has_gpus)
        for device, has_gpus in devices
    ]
    assert counts == [1, 0, 2, 2, 0, 0]


def test_a_cell_is_a_task_with_its_gpus_and_labels(tmp_path):
    submitted = []
    task = SimpleNamespace(
        options=lambda **options: SimpleNamespace(
            remote=lambda *_: submitted.append(options)
        )
    )
    ray = SimpleNamespace(
        put=lambda part: part, remote=lambda **options: lambda function: task
    )
    list(
        tasks._submit(
            ray, [cell(labels={"region": "eu"}), cell()], [0, 3], len, tmp_path
        )
    )
    on_cpu, on_gpus = submitted
    assert on_cpu["label_selector"] == {"region": "eu"}
    assert (on_cpu["num_gpus"], on_cpu["resources"]) == (0, {"measuring": 1})
    assert (on_gpus["num_gpus"], on_gpus["resources"]) == (3, {"measuring": 0.001})


def test_a_file_that_a_host_lacks_is_an_error_that_names_it(tmp_path):
    with pytest.raises(UsageError, match=r"job\.py .*--ship"):
        host.require_files(Workload(len, Reference("job.py:data", str(tmp_path))))
    host.require_files(Workload(len, Reference("package.module:data", str(tmp_path))))
