"""The Ray task of a cell, with a stand-in for Ray."""

import os
from types import SimpleNamespace

import cloudpickle
import pytest

from autofit.errors import UsageError
from autofit.tuning import cells as ray_cells
from autofit.tuning.cells import CellRequest
from autofit.tuning.settings import TuneSettings
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload


def cell(workload=None, labels=None, **settings):
    return CellRequest({"n": 1}, workload or Workload(len, len), TuneSettings(**settings), host_labels=labels or {})


def node(name="a", labels=None, **resources):
    return {"NodeID": name, "Alive": True, "Resources": {"measuring": 1.0, **resources}, "Labels": labels or {}}


def ray(*nodes, gpus=()):
    """Ray on the first of `nodes`, which assigned `gpus` to the task."""
    context = SimpleNamespace(get_node_id=lambda: nodes[0]["NodeID"], get_accelerator_ids=lambda: {"GPU": list(gpus)})
    return SimpleNamespace(
        nodes=lambda: list(nodes),
        get_runtime_context=lambda: context,
    )


@pytest.mark.parametrize(
    ("gpus", "cores", "memory"),
    [(["1"], [2, 3], "20%"), (["2", "3"], [4, 5, 6, 7], "40%"), (["5"], [2, 3], "20%"),
     (["GPU-77"], None, "20%"), (["0", "1", "2", "3"], None, "80%"), ([], None, "80%")],
)  # fmt: skip  # one item a line would be longer, not clearer
def test_a_cell_has_the_cores_and_the_memory_of_its_gpus(monkeypatch, gpus, cores, memory):
    pinned = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: pinned.append(cores))
    request = cell(host_memory="80%", device=f"{max(1, len(gpus))}x gpu")
    shared = ray_cells._on_own_share(ray(node(GPU=4.0), gpus=gpus), request)
    assert pinned == ([] if cores is None else [cores])
    assert shared.settings.host_memory == memory
    fixed = cell(host_memory="6GiB")
    assert ray_cells._on_own_share(ray(node(GPU=4.0), gpus=["1"]), fixed).settings == fixed.settings


@pytest.mark.parametrize(
    ("gpus", "labels", "lacking"),
    [
        (0, {}, None),
        (1, {"region": "eu"}, None),
        (2, {}, "2 GPUs"),
        (2, {"region": "eu"}, "2 GPUs, region=eu"),
        (0, {"region": "us"}, "region=us"),
        (0, {"region": "!in(eu, us)"}, None),  # Ray knows
    ],
)
def test_cells_that_no_host_can_tune_wait_and_say_so(gpus, labels, lacking):
    notices, nodes = [], [node(GPU=1.0), node("b", {"region": "eu"}, GPU=1.0)]
    ray_cells._check_hosts(nodes, [cell(labels=labels)] * 2, [gpus] * 2, notices.append)
    waiting = f"no host has {lacking}: cells that need it wait until such a host joins the cluster"
    assert notices == ["2 cells on 2 hosts of a Ray cluster", *([waiting] if lacking else [])]


def test_a_cluster_without_a_host_that_measures_is_an_error():
    with pytest.raises(UsageError, match="--resources="):
        ray_cells._check_hosts([{**node(), "Alive": False}], [cell()], [0], print)


def test_cells_take_a_gpu_where_the_cluster_has_some():
    counts = [
        ray_cells._gpu_count(TuneSettings(device=device), has_gpus=has_gpus)
        for device in ("auto", "2x gpu", "2x cpu")
        for has_gpus in (True, False)
    ]
    assert counts == [1, 0, 2, 2, 0, 0]


def test_what_cells_share_crosses_the_cluster_once_and_references_name_the_copy(tmp_path):
    (tmp_path / "job.py").touch()
    named, module = (
        Reference("../job.py:build_model", str(tmp_path / "configs")),
        Reference("package.module:data", str(tmp_path)),
    )
    data, stored, submitted = [1, 2], [], []
    task = SimpleNamespace(
        options=lambda **options: SimpleNamespace(remote=lambda *told: submitted.append((options, told)))
    )
    fake = ray(node())
    fake.put, fake.remote = (lambda part: stored.append(part) or len(stored)), lambda **options: lambda function: task
    workloads = [
        Workload(named, data, fit_kwargs={"callbacks": named, "epochs": 2}),
        Workload(named, data, validation=module),
    ]
    cells = [cell(workload, {"region": "eu"}) for workload in workloads]
    list(ray_cells._submitted(fake, cells, [0, 3], len, tmp_path))
    assert stored == [data, None, module]
    (options, (_, pickled, parts, folder)), (on_gpus, (_, _, others, _)) = submitted
    assert (parts, others, folder) == ([1, 2], [1, 3], None)
    assert options["label_selector"] == {"region": "eu"}
    assert (options["num_gpus"], options["resources"]) == (0, {"measuring": 1})
    assert (on_gpus["num_gpus"], on_gpus["resources"]) == (3, {"measuring": 0.001})
    sent = cloudpickle.loads(pickled).workload
    assert (sent.build_model, sent.data, sent.fit_kwargs["callbacks"]) == (
        Reference("job.py:build_model"),
        None,
        sent.build_model,
    )


def test_a_file_that_a_host_lacks_is_an_error_that_names_it(tmp_path):
    with pytest.raises(UsageError, match=r"job\.py .*--ship"):
        ray_cells._check_files(Workload(len, Reference("job.py:data", str(tmp_path))))
    ray_cells._check_files(Workload(len, Reference("package.module:data", str(tmp_path))))
