"""Sweeps on the hosts of a Ray cluster of real processes, with made-up trials."""

import _thread
import json
import random
import threading
from collections import Counter

import pytest

from autofit.errors import UsageError
from autofit.tuning.cells import CellRequest, tune_on_ray, tuned
from autofit.tuning.settings import TuneSettings
from autofit.workload.workload import Workload
from tests.hosts import tunes
from tests.installed import needs

pytestmark = pytest.mark.slow


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
    """Run a sweep on the cluster that RAY_ADDRESS names; return its cells in order."""
    ended = dict(tune_on_ray(requests, tune, "ray", None, [].append if notices is None else notices.append))
    return [ended[index] for index in range(len(requests))]


def table(swept):
    """The choice of each cell: config, rate and number of trials."""
    return [(cell.tune.config, cell.tune.samples_per_second, len(cell.tune.searched)) for cell in swept]


def noted(folder, kind):
    """How often the notes have a line of this kind, by cell."""
    return Counter(line.split()[1] for line in (folder / "notes").read_text().splitlines() if line.startswith(kind))


def test_the_table_is_that_of_one_machine_and_each_cell_is_answered_once(hosts, tmp_path):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    here = [tuned(tunes.tune, request) for request in cells(tmp_path / "here", 12)]
    notices = []
    there = on_ray(cells(tmp_path / "there", 12), notices=notices)
    assert table(there) == table(here)
    assert [cell.values for cell in there] == [{"n": n} for n in range(12)]
    assert noted(tmp_path / "there", "ends") == {f"cell{n}": 1 for n in range(12)}
    assert notices == ["12 cells on 3 hosts of a Ray cluster"]
    again = [tuned(tunes.tune, request) for request in cells(tmp_path / "there", 12)]  # without Ray, from the same storage
    assert table(again) == table(there)
    assert noted(tmp_path / "there", "tuned") == {f"cell{n}": 1 for n in range(12)}


def test_a_cell_on_a_host_that_dies_goes_on_elsewhere_with_its_trials(mortal, tmp_path):
    requests = cells(tmp_path, 6, seconds=0.6)
    killer = threading.Timer(random.uniform(1.5, 4), mortal.kill, [f"host{random.randrange(3)}"])
    killer.start()
    swept = on_ray(requests)
    killer.join()
    assert table(swept) == table([tuned(tunes.tune, request) for request in requests])
    assert max(noted(tmp_path, "tuned").values()) == 1


def test_a_cell_that_kills_its_process_is_a_failed_row_after_retries(hosts, tmp_path):
    requests = cells(tmp_path, 3)
    requests[1].workload.model_kwargs["name"] = "deadly"
    swept = on_ray(requests, tunes.deadly)
    assert [cell.outcome for cell in swept] == ["ok", "failed", "ok"]
    assert "worker died" in swept[1].problem


def test_a_cell_on_hosts_that_cannot_tune_is_a_failed_row_after_retries(hosts, tmp_path):
    swept = on_ray(cells(tmp_path, 2), tunes.at_fault)
    assert ["cannot tune: no room in /dev/shm" in cell.problem for cell in swept] == [True, True]
    assert noted(tmp_path, "begins") == {"cell0": 3, "cell1": 3}


def test_a_cell_has_a_host_with_its_labels_and_the_environment_of_that_host(hosts, tmp_path):
    for label in ("big", "small"):
        on_ray(cells(tmp_path, 1, labels={"class": label}), tunes.seen)
        environment, labels = json.loads((tmp_path / "seen").read_text())
        assert labels["class"] == label
        assert "OMP_NUM_THREADS" not in environment


def test_a_cell_for_which_no_host_has_the_labels_waits_and_says_so(hosts, tmp_path):
    (request,) = cells(tmp_path, 1, labels={"class": "huge"})
    notices, ended = [], []
    sweep = tune_on_ray([request], tunes.tune, "ray", None, notices.append)
    threading.Timer(5, _thread.interrupt_main).start()  # as Ctrl-C does
    with pytest.raises(KeyboardInterrupt):
        ended += sweep
    assert notices[1:] == ["no host has class=huge: cells that need it wait until such a host joins the cluster"]
    assert ended == []


def test_without_a_cluster_there_is_one_clear_error(monkeypatch):
    needs("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(UsageError, match=r"^executor: no Ray cluster answers at 127\.0\.0\.1:1 \("):
        next(tune_on_ray([], tunes.tune, "ray", None, print))
