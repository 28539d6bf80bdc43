"""`autofit sweep --on ray` as a user runs it: real trials, signals, shipped code, and trials in PostgreSQL."""

import json
import os
import platform
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import optuna
import psutil
import pytest

from autofit.storage.connection import url_of
from tests.cli.test_cli import ROOT, SMALL
from tests.cli.test_sweep import start
from tests.hosts.postgres import POSTGRES, Postgres
from tests.hosts.test_ray import cells, noted, on_ray
from tests.installed import needs
from tests.trial.test_lifetime import wait_for

pytestmark = pytest.mark.slow

SWEEP = (
    "build_model: job.py:build_model\ndata: job.py:Cases\nbaseline: {batch_size: 32}\n"
    + SMALL.replace("max_trials: 3", "max_trials: 1")
    + "matrix: {model_kwargs.filters: [4], model_kwargs.fail: [false, true]}\n"
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "job.py").write_bytes((ROOT / "tests/workloads.py").read_bytes())
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    return tmp_path


def servers(folder):
    """The trial servers of the sweep in a folder, on any host: it is their working folder."""
    pids = set()
    for process in psutil.process_iter(["cmdline", "cwd"]):
        if process.info["cwd"] == str(folder) and any("autofit.trial" in part for part in process.info["cmdline"] or []):
            pids.add(process.pid)
    return pids


def test_real_trials_on_hosts_with_code_that_is_shipped(hosts, folder):
    storage = f"sqlite:///{folder}/trials.db"
    first = start(folder, "--on", "ray", "--ship", ".", "--storage", storage)
    output = first.communicate(timeout=800)[0]
    assert first.returncode == 0, output
    cells = json.loads((folder / "sweep.json").read_text())["cells"]
    assert [cell["outcome"] for cell in cells] == ["ok", "failed"]
    assert {cell["host"] for cell in cells} == {platform.node()}
    assert "2 cells on 3 hosts of a Ray cluster" in output
    assert "_ray_pkg_" in cells[1]["problem"]  # the code that ran is the copy on the host
    assert "RuntimeError: the model cannot be built" in cells[1]["problem"]
    assert str(folder) in str(cells[0]["tune"]["call_source"]["imports"])  # the lines to paste name the user's own folder
    assert "OMP_NUM_THREADS" not in json.dumps(cells)


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_signal_ends_the_trials_on_all_hosts(hosts, folder, sent, status):
    process = start(folder, "--on", "ray")
    wait_for(lambda: servers(folder))
    time.sleep(2)
    process.send_signal(sent)
    output = process.communicate(timeout=800)[0]
    assert process.returncode == status, output
    if sent != signal.SIGKILL:
        assert "Interrupted; all processes have ended." in output
        assert not servers(folder)
    else:
        wait_for(lambda: not servers(folder))


def test_a_cell_resumes_with_the_trials_that_its_lost_host_left_in_postgresql(mortal, tmp_path):
    needs("psycopg")
    if not POSTGRES.is_dir() or os.geteuid():
        pytest.skip("PostgreSQL's server is not installed here, or this is not root")
    server = Postgres()
    try:
        server.create("trials")
        storage = server.url("trials")
        requests = cells(tmp_path, 1, storage, {"class": "big"}, seconds=1.5, trials=4)
        watched = optuna.storages.RDBStorage(url_of(storage))

        def finished():
            studies = watched.get_all_studies()
            complete = (optuna.trial.TrialState.COMPLETE,)  # what the lost host was running has failed
            return [t.number for one in studies[:1] for t in watched.get_all_trials(one._study_id, states=complete)]

        with ThreadPoolExecutor(1) as pool:
            sweep = pool.submit(on_ray, requests)
            wait_for(lambda: len(finished()) >= 2)
            numbers = finished()
            mortal.kill("host0")
            mortal.add("big")
            (cell,) = sweep.result(timeout=800)
        assert cell.outcome == "ok"
        assert len(numbers) >= 2
        assert finished()[: len(numbers)] == numbers  # they are those that the first host ran
        assert len(finished()) <= 4  # and count: none ran twice
        assert noted(tmp_path, "begins") == {"cell0": 2}
        assert noted(tmp_path, "tuned") == {"cell0": 1}
        watched.engine.dispose()
    finally:
        server.close()
