"""The Ray task of a cell, without a cluster."""

import os
import sys
import threading
from pathlib import Path

import cloudpickle
import pytest

from autofit.errors import StorageError, UsageError, UserCodeError
from autofit.records.machine import Device
from autofit.records.sweep import Cell
from autofit.tuning.cells import CellRequest
from autofit.tuning.executors import ray_executor, ray_task
from autofit.tuning.executors.ray_task import HostFault, PickledCell, ProgressActor
from autofit.tuning.settings import TuneSettings
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload
from tests.fakes import FakeLauncher, collect, make_request, tune

GPUS = tuple(Device(n, f"GPU {n}", f"GPU-{n}", 2**34, 2**34) for n in range(2))


def cell(workload=None, **settings):
    return CellRequest({"n": 1}, workload or Workload(len, len), TuneSettings(**settings), fresh=True)


def unchanged(part):
    """Stands for Ray's store: each object is its own reference."""
    return part


@pytest.fixture
def waited(monkeypatch):
    """Collects the seconds for which a task would have slept."""
    seconds = []
    monkeypatch.setattr(ray_task.time, "sleep", seconds.append)
    return seconds


def failing(times, record, seen):
    """A tune whose storage does not answer the first `times` times."""

    def tune_cell(request, tell, cancelled):
        seen.append(request.fresh)
        if len(seen) <= times:
            raise StorageError("it does not answer")
        return record

    return tune_cell


def test_a_task_waits_for_a_database_server_and_deletes_nothing_twice(waited, tmp_path):
    record = collect(tune, make_request(tmp_path), FakeLauncher())[1]
    seen, lines = [], []
    result = ray_task._tune_patiently(failing(2, record, seen), cell(storage="postgresql://user@host/db"), lines.append)
    assert (result.tune, result.problem) == (record, "")
    assert seen == [True, False, False]
    assert waited == [5.0, 15.0]
    assert lines == ["waiting for the storage"] * 2


@pytest.mark.parametrize(("storage", "tries"), [("postgresql://user@host/db", 5), ("trials.db", 1), (None, 1)])
def test_a_server_that_stays_away_and_an_unusable_file_are_faults_of_the_host(waited, storage, tries):
    seen = []
    with pytest.raises(StorageError):
        ray_task._tune_patiently(failing(9, None, seen), cell(storage=storage), len)
    assert len(seen) == tries


def test_an_error_in_user_code_is_the_result_of_the_cell(waited):
    def tune_cell(request, tell, cancelled):
        raise UserCodeError("while building the model", "ValueError: no")

    result = ray_task._tune_patiently(tune_cell, cell(storage="postgresql://user@host/db"), len)
    assert result == Cell({"n": 1}, None, "your code failed while building the model:\n\nValueError: no")
    assert waited == []


def test_a_cell_has_its_gpu_and_its_share_of_a_host_with_several(monkeypatch):
    pinned = []
    monkeypatch.setattr(ray_task.gpus, "nvidia_devices", lambda: GPUS[1:])  # Ray leaves it one to see
    monkeypatch.setattr(ray_task.gpus, "survey", lambda *, hidden: GPUS)
    monkeypatch.setattr(ray_task.gpus, "nearby_cores", lambda gpu: ())
    monkeypatch.setattr(ray_task, "usable_core_numbers", lambda: (0, 1, 2, 3))
    monkeypatch.setattr(ray_task.os, "sched_setaffinity", lambda pid, cores: pinned.append(cores))
    shared = ray_task._on_own_gpus(cell(host_memory="80%"))
    assert (shared.settings.device, shared.settings.host_memory) == ("gpu:1", "40%")
    assert pinned == [[2, 3]]
    alone = cell(device="cpu")
    assert ray_task._on_own_gpus(alone) is alone


def test_references_point_to_the_copy_of_the_shipped_folder(tmp_path, monkeypatch):
    ship, root = tmp_path / "here", tmp_path / "there"
    for folder in (ship / "jobs", root / "jobs"):
        folder.mkdir(parents=True)
        (folder / "job.py").write_text("def build_model():\n    pass\n")
    monkeypatch.chdir(root)
    monkeypatch.setattr(sys, "path", list(sys.path))
    named = Reference("../jobs/job.py:build_model", str(ship / "configs"))
    module = Reference("package.module:data", str(ship))
    bare = cell(Workload(named, None, fit_kwargs={"callbacks": named, "epochs": 2}))
    opened = PickledCell(cloudpickle.dumps(bare), module, None, ship, ship).opened(unchanged)
    assert opened.workload.build_model.path == root / "jobs" / "job.py"
    assert opened.workload.fit_kwargs["callbacks"].path == root / "jobs" / "job.py"
    assert opened.workload.fit_kwargs["epochs"] == 2
    assert opened.workload.data == module
    assert opened.workload.validation is None


def test_without_shipping_a_cell_works_in_the_folder_of_the_sweep(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    shared = tmp_path / "shared"
    shared.mkdir()
    PickledCell(cloudpickle.dumps(cell()), None, None, shared, None).opened(unchanged)
    assert Path.cwd() == shared
    PickledCell(cloudpickle.dumps(cell()), None, None, tmp_path / "elsewhere", None).opened(unchanged)
    assert Path.cwd() == shared
    missing = Workload(Reference("job.py:build_model", str(tmp_path)), None)
    with pytest.raises(UsageError, match=r"job\.py .*--ship"):
        PickledCell(cloudpickle.dumps(cell(missing)), None, None, shared, None).opened(unchanged)


def test_changes_by_ray_are_undone_or_reported(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = os.environ.get("HOME")
    problems = ray_task.restore_process({"OMP_NUM_THREADS": "1"}, "host1")
    assert os.environ["OMP_NUM_THREADS"] == "1"  # the user's own choice
    assert [text for text in problems if "host1" in text and "RAY_memory_monitor_refresh_ms=0" in text]
    ray_task.restore_process({}, "host1")
    assert "OMP_NUM_THREADS" not in os.environ or os.getppid() == 0
    assert os.environ.get("HOME") == before

    def refused(*_):
        raise PermissionError

    monkeypatch.setattr(ray_task.os, "setpriority", refused)
    assert any("RAY_worker_niceness=0" in text for text in ray_task.restore_process({}, "host1"))


def test_progress_is_read_once_and_an_excluded_host_begins_no_cell():
    progress = ProgressActor()
    assert progress.begin(3, "node", "host1") == ()
    progress.tell(3, "host1", "searching")
    assert progress.lines() == [(3, "host1", ""), (3, "host1", "searching")]
    fault = HostFault("node", "host1", "no room in /dev/shm")
    progress.exclude(3, fault)
    assert progress.begin(4, "node", "host1") == fault
    assert progress.begin(3, "other", "host2") == ()  # the host at fault did not lose it
    assert progress.lines() == [(3, "host2", "")]


def test_a_cell_that_begins_again_has_lost_its_host():
    progress = ProgressActor()
    progress.begin(3, "a", "host1")
    assert progress.begin(3, "b", "host2") == ("host1",)
    notices = [text for index, _, text in progress.lines() if index is None]
    assert len(notices) == 1
    assert all(part in notices[0] for part in ("host1", "host2", "cell 4"))
    assert progress.begin(3, "c", "host3") == ("host1", "host2")


def test_a_cell_on_several_gpus_has_the_cores_and_the_memory_of_all_of_them(monkeypatch):
    four = [Device(n, f"GPU {n}", f"GPU-{n}", 2**34, 2**34) for n in range(4)]
    pinned = []
    monkeypatch.setattr(ray_task.gpus, "nvidia_devices", lambda: tuple(four[1:3]))
    monkeypatch.setattr(ray_task.gpus, "survey", lambda hidden: tuple(four))
    monkeypatch.setattr(ray_task.gpus, "nearby_cores", lambda gpu: ())
    monkeypatch.setattr(ray_task, "usable_core_numbers", lambda: range(8))
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: pinned.append(cores))
    shared = ray_task._on_own_gpus(cell(host_memory="80%", devices=2))
    assert pinned == [[2, 3, 4, 5]]
    assert (shared.settings.device, shared.settings.devices, shared.settings.host_memory) == ("auto", 2, "40%")


def test_closing_does_not_wait_for_a_cluster_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(ray_executor, "_ANSWER_SECONDS", 0.01)
    executor, answered = object.__new__(ray_executor.RayExecutor), threading.Event()
    executor._closing, executor._thread = threading.Event(), threading.Thread(target=answered.wait)
    executor._thread.start()
    executor.close()  # it makes no call, as this executor has no Ray
    assert executor._closing.is_set()
    answered.set()
    executor._thread.join()


@pytest.mark.parametrize(("settings", "key"), [({"device": "gpu:1"}, "device"), ({"devices": [0, 1]}, "devices")])
def test_a_cell_cannot_name_its_gpus(settings, key):
    executor = object.__new__(ray_executor.RayExecutor)
    with pytest.raises(UsageError) as caught:
        executor.start([cell(**settings)], lambda *told: None)
    assert caught.value.key == key
