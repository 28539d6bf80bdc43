"""Cells on this machine: one after the other, or in parallel if each has its own device and cores."""

import os
import threading
from dataclasses import replace

import pytest

from autofit.errors import StorageError, UsageError
from autofit.records.machine import Device
from autofit.tuning.cells import CellRequest, tune_cells
from autofit.tuning.executors.local import LocalExecutor, Slot, in_slot, slots_of
from autofit.tuning.settings import TuneSettings
from autofit.tuning.tuner import tune
from autofit.workload.workload import Workload
from tests.fakes import MIB, FakeLauncher, collect, make_request

GPUS = tuple(Device(n, f"GPU {n}", f"GPU-{n}", 2**34, 2**34) for n in range(2))


def cell(values, device="auto", **more):
    return CellRequest(values, Workload(len, len), TuneSettings(device=device), **more)


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    return collect(tune, make_request(tmp_path_factory.mktemp("tune"), device_bytes=150 * MIB), FakeLauncher())[1]


def test_there_is_a_slot_for_each_gpu_with_cores_of_its_own():
    assert slots_of(None, GPUS, range(8)) == (
        Slot("gpu:0", (0, 1, 2, 3)),
        Slot("gpu:1", (4, 5, 6, 7)),
    )
    near = {GPUS[0].uuid: (4, 5, 6, 7), GPUS[1].uuid: (0, 1, 2, 3)}
    crossed = slots_of(None, GPUS[:2], range(8), lambda gpu: near[gpu.uuid])
    assert [slot.cores for slot in crossed] == [(4, 5, 6, 7), (0, 1, 2, 3)]
    half_known = slots_of(None, GPUS[:2], range(8), lambda gpu: (6, 7) if gpu is GPUS[0] else ())
    assert [slot.cores for slot in half_known] == [(0, 1, 6, 7), (2, 3, 4, 5)]
    assert slots_of(1, GPUS, range(8)) == ()
    assert slots_of(None, GPUS, range(1)) == ()
    assert slots_of(None, (), range(8)) == ()
    with pytest.raises(UsageError, match=r"^jobs: 2 .* 1\b"):
        slots_of(2, (), range(8))


def test_slots_share_the_memory_of_the_host_and_have_their_own_device():
    for host_memory, share in (("80%", "40%"), ("6GiB", "6GiB")):
        settings = TuneSettings(host_memory=host_memory)
        assert in_slot(settings, "gpu:1", 2) == TuneSettings(host_memory=share, device="gpu:1")


def test_cells_run_in_parallel_on_their_own_cores_and_those_on_the_cpu_alone(record):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core: no two slots can have cores of their own")
    slots = (Slot("gpu:0", (cores[0],)), Slot("gpu:1", (cores[1],)))
    both, seen = threading.Barrier(2, timeout=10), []

    def tune_cell(cell, tell, cancelled):
        if cell.settings.device != "cpu":
            both.wait()  # two cells are here at the same time
        seen.append((cell.settings.device, tuple(sorted(os.sched_getaffinity(0)))))
        return record

    cells = [cell({"n": 0}), cell({"n": 1}), cell({"n": 2}, device="cpu")]
    events = list(tune_cells("s", cells, LocalExecutor(tune_cell, slots)))
    assert sorted(seen[:2]) == [("gpu:0", (cores[0],)), ("gpu:1", (cores[1],))]
    assert seen[2] == ("cpu", tuple(cores))
    assert [cell.outcome for cell in events[-1].record.cells] == ["ok"] * 3


def test_an_error_in_a_slot_tells_the_others_to_stop(record):
    stopped = []

    def tune_cell(cell, tell, cancelled):
        if cell.settings.device == "gpu:0":
            raise StorageError("the disk is full")
        stopped.append(cancelled.wait(timeout=10))
        return record

    slots = tuple(Slot(f"gpu:{n}", tuple(os.sched_getaffinity(0))) for n in range(2))
    with pytest.raises(StorageError):
        list(tune_cells("s", [cell({"n": 0}), cell({"n": 1})], LocalExecutor(tune_cell, slots)))
    assert stopped == [True]


def test_host_labels_are_refused_on_this_machine():
    with pytest.raises(UsageError, match=r"^host_labels: "):
        list(tune_cells("s", [cell({"n": 0}, host_labels={"region": "eu"})], LocalExecutor(len)))


def test_a_cell_on_several_gpus_has_the_machine_to_itself(record):
    slots, seen = (Slot("gpu:0", tuple(os.sched_getaffinity(0))), Slot("gpu:1", tuple(os.sched_getaffinity(0)))), []

    def tune_cell(cell, tell, cancelled):
        seen.append((cell.settings.device, cell.settings.devices))
        return record

    cells = [replace(cell({"n": n}), settings=TuneSettings(devices=count)) for n, count in enumerate((2, 1, [0, 1]))]
    list(tune_cells("s", cells, LocalExecutor(tune_cell, slots)))
    assert seen[0] in (("gpu:0", 1), ("gpu:1", 1))
    assert seen[1:] == [("auto", 2), ("auto", [0, 1])]
