"""Sweeps on the hosts of a Ray cluster of real processes, with made-up trials."""

import random
import threading
from collections import Counter
from dataclasses import replace

import pytest

from autofit.errors import ExecutorError, UsageError
from autofit.tuning.cells import CellEnded, CellRequest, tune_cells
from autofit.tuning.executors.local import LocalExecutor
from autofit.tuning.executors.ray_task import LOST_TWICE
from autofit.tuning.settings import TuneSettings
from autofit.workload.workload import Workload
from tests.hosts import tunes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def cells(folder, count=6, storage=None, labels=None, **kwargs):
    settings = TuneSettings(device="cpu", storage=storage or f"journal:{folder}/trials.log")
    return [
        CellRequest(
            {"n": n},
            Workload(len, len, model_kwargs={"folder": str(folder), "name": f"cell{n}", "batch_size": 8 * n + 8, **kwargs}),
            settings,
            host_labels=labels or {},
        )
        for n in range(count)
    ]


def on_ray(requests, tune=tunes.tune, notices=None):
    """Run a sweep on the cluster that RAY_ADDRESS names."""
    from autofit.tuning.executors.ray_executor import RayExecutor

    executor = RayExecutor(tune, "ray", None, [].append if notices is None else notices.append)
    return list(tune_cells("s", requests, executor))


def table(events):
    """The choice of each cell: config, rate and number of trials."""
    results = [cell.tune for cell in events[-1].record.cells]
    return [(tune.config, tune.samples_per_second, len(tune.searched)) for tune in results]


def noted(folder, kind):
    """How often the notes have a line of this kind, by cell."""
    return Counter(line.split()[1] for line in (folder / "notes").read_text().splitlines() if line.startswith(kind))


def test_the_table_is_that_of_one_machine_and_each_cell_is_answered_once(hosts, tmp_path):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    here = list(tune_cells("s", cells(tmp_path / "here", 12), LocalExecutor(tunes.tune)))
    there = on_ray(cells(tmp_path / "there", 12))
    assert table(there) == table(here)
    assert noted(tmp_path / "there", "ends") == {f"cell{n}": 1 for n in range(12)}
    assert {cell.host for cell in there[-1].record.cells} == {"host0", "host1", "host2"}
    ended = [event.index for event in there if isinstance(event, CellEnded)]
    assert sorted(ended) == list(range(12))
    assert there[-1].record.hosts
    again = on_ray(cells(tmp_path / "there", 12))
    assert table(again) == table(there)
    assert noted(tmp_path / "there", "tuned") == {f"cell{n}": 1 for n in range(12)}


def test_a_cell_that_needs_more_gpus_than_any_host_has_waits_and_says_so(hosts, tmp_path):
    from autofit.tuning.executors.ray_executor import RayExecutor

    notices, noticed = [], threading.Event()

    def notify(text):
        notices.append(text)
        noticed.set()

    (request,) = cells(tmp_path, 1)
    executor = RayExecutor(tunes.tune, "ray", None, notify)
    executor.start([replace(request, settings=TuneSettings(device="gpu", devices=2))], lambda *told: None)
    try:
        assert noticed.wait(timeout=280)
    finally:
        executor.close()
    assert len(notices) == 1
    assert "2 GPUs" in notices[0]


def test_a_cell_on_a_host_that_dies_goes_on_elsewhere_with_its_trials(mortal, tmp_path):
    requests, notices = cells(tmp_path, 6, seconds=0.6), []
    victim = f"host{random.randrange(3)}"
    killer = threading.Timer(random.uniform(1.5, 4), mortal.kill, [victim])
    killer.start()
    events = on_ray(requests, notices=notices)
    killer.join()
    assert table(events) == table(list(tune_cells("s", requests, LocalExecutor(tunes.tune))))
    assert max(noted(tmp_path, "tuned").values()) == 1
    lost = [cell for cell in events[-1].record.cells if cell.note]
    assert len(lost) == len(notices) <= 1
    assert all(cell.host != victim and victim in cell.note for cell in lost)


def test_a_cell_that_kills_its_process_twice_is_a_failed_row(hosts, tmp_path):
    requests = cells(tmp_path, 3)
    requests[1].workload.model_kwargs["name"] = "deadly"
    swept = on_ray(requests, tunes.deadly)[-1].record.cells
    assert [cell.outcome for cell in swept] == ["ok", "failed", "ok"]
    assert swept[1].problem.startswith(LOST_TWICE)
    assert "host" in swept[1].host


def test_a_host_that_cannot_tune_gets_no_more_cells(hosts, tmp_path):
    notices = []
    swept = on_ray(cells(tmp_path, 5, unable=["small"]), tunes.at_fault, notices)[-1].record.cells
    assert [(cell.outcome, cell.host) for cell in swept] == [("ok", "host0")] * 5
    assert sorted(notices) == [f"host{n} gets no more cells: no room in /dev/shm" for n in (1, 2)]
    with pytest.raises(ExecutorError, match=r"(\nhost\d: no room in /dev/shm){3}"):
        on_ray(cells(tmp_path, 5, unable=["small", "big"]), tunes.at_fault)


def test_cells_choose_the_class_of_their_host(hosts, tmp_path):
    swept = on_ray(cells(tmp_path, 3, labels={"class": "big"}))[-1].record.cells
    assert {cell.host for cell in swept} == {"host0"}


def test_an_array_that_all_cells_share_crosses_once_and_unchanged(hosts, tmp_path):
    import numpy as np
    import ray

    from autofit.tuning.executors.ray_executor import RayExecutor

    requests = cells(tmp_path, 3)
    data = np.arange(300_000.0)
    shared = [CellRequest(cell.values, Workload(len, data), cell.settings) for cell in requests]
    executor = RayExecutor(tunes.tune, "ray", None, print)
    pickled_cells = [executor._pickled(cell) for cell in shared]
    assert len({pickled.data for pickled in pickled_cells}) == 1
    assert (pickled_cells[0].opened(ray.get).workload.data == data).all()
    executor.close()


def test_the_tune_has_the_environment_and_the_cores_of_its_host(hosts, tmp_path, monkeypatch):
    import os

    on_ray(cells(tmp_path, 1), tunes.seen)
    environment, cores, niceness = eval((tmp_path / "seen").read_text())  # a repr of ours
    assert "OMP_NUM_THREADS" not in environment
    assert cores == sorted(os.sched_getaffinity(0))
    if os.geteuid() == 0:  # nobody else may raise a priority
        assert niceness == os.nice(0)


def test_without_a_cluster_or_a_host_that_may_measure_there_is_one_clear_error(mortal, monkeypatch):
    from autofit.tuning.executors.ray_executor import RayExecutor

    for name in list(mortal.nodes):
        mortal.cluster.remove_node(mortal.nodes.pop(name))  # as ray stop does, which the cluster learns at once
    with pytest.raises(UsageError, match=r"^executor: .* --resources='{\"measuring\": 1}'"):
        RayExecutor(tunes.tune, "ray", None, print)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(UsageError, match=r"^executor: .*'ray' \(127\.0\.0\.1:1: "):
        RayExecutor(tunes.tune, "ray", None, print)
