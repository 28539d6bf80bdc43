"""Sweeps on a Ray cluster of real processes on this machine.

Some have made-up trials; one is a sweep by the command line.
"""

import csv
import os
import platform
import signal
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from autofit.cluster.cells import CellRequest, tune_cell
from autofit.cluster.tasks import tune_on_ray
from autofit.storage.connection import url_of
from autofit.tuning import engine
from autofit.tuning.request import reuse
from autofit.tuning.settings import TuneSettings
from autofit.workload.workload import Workload
from tests.commands import AUTOFIT, ROOT
from tests.fakes import FakeLauncher, make_request
from tests.installed import needs
from tests.trial.test_lifetime import wait_for

LABELS = ("big", "small", "small")
SWEEP = """
build_model: job.py:build_model
data: job.py:Cases
data_kwargs: {seconds: 0.02, length: 40}
max_trials: 1
baseline: {batch_size: 32}
space: {batch_size: [32], workers: [1], max_queue_size: [4], use_multiprocessing: [false]}
matrix: {model_kwargs.filters: [4], model_kwargs.fail: [false, true]}
host_labels: {class: small}
"""


@pytest.fixture(scope="module")
def nodes():
    """The hosts of a cluster, each labelled with its class.

    They are a head that does not measure, and three that do.
    """
    needs("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_memory_monitor_refresh_ms", "0")
        patch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        patch.delenv("OMP_NUM_THREADS", raising=False)
        import ray
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        measuring = {
            "num_cpus": 1,
            "resources": {"measuring": 1},
            "include_dashboard": False,
        }
        patch.setenv("RAY_ADDRESS", cluster.address)
        yield (
            cluster,
            [
                cluster.add_node(labels={"class": label}, **measuring)
                for label in LABELS
            ],
        )
        ray.shutdown()
        cluster.shutdown()


class SlowLauncher(FakeLauncher):
    """Runs made-up trials that take half a second each."""

    def run(self, spec, *others):
        started_at = time.time()
        time.sleep(0.5 if spec.role == "measure" else 0)
        result = super().run(spec, *others)
        return (
            replace(result, started_at=started_at) if spec.role == "measure" else result
        )


def tune(cell):
    """Tune with a few made-up trials, and note on which kind of host."""
    import ray

    kwargs = cell.workload.model_kwargs
    folder = Path(kwargs["folder"])
    name = kwargs["name"]
    storage = url_of(cell.settings.storage)
    request = make_request(
        folder / "unused", workload_fingerprint=name, storage=storage, max_trials=4
    )
    record = reuse(request, print) or engine.tune(
        request, SlowLauncher(), lambda event: None
    )
    label = (
        ray.get_runtime_context().get_node_labels()["class"]
        if ray.is_initialized()
        else "here"
    )
    with open(folder / "notes", "a") as file:
        file.write(f"{name} {label} {os.environ.get('OMP_NUM_THREADS')}\n")
    return record


def cells(folder, labels):
    settings = TuneSettings(device="cpu", storage=f"journal:{folder}/trials.log")
    kwargs = [{"folder": str(folder), "name": f"cell{n}"} for n in range(len(labels))]
    return [
        CellRequest(
            each,
            Workload(len, len, model_kwargs=each),
            settings,
            host_labels={"class": label} if label else {},
        )
        for each, label in zip(kwargs, labels, strict=True)
    ]


def test_a_cell_runs_on_a_host_with_its_labels_and_the_table_is_that_of_one_machine(
    nodes, tmp_path
):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    labels = ["small", "big", "small", "big", ""]
    here = [tune_cell(tune, request) for request in cells(tmp_path / "here", labels)]
    there = dict(
        tune_on_ray(cells(tmp_path / "there", labels), tune, "ray", None, print)
    )
    noted = [
        line.split()
        for line in sorted((tmp_path / "there" / "notes").read_text().splitlines())
    ]
    assert [name for name, *_ in noted] == [f"cell{n}" for n in range(5)]
    assert [label for _, label, _ in noted[:4]] == labels[:4]
    assert {threads for *_, threads in noted} == {
        "None"
    }  # of the host, not those that Ray sets
    table = [
        (cell.tune.config, cell.tune.samples_per_second, len(cell.tune.searched))
        for cell in here
    ]
    assert table == [
        (
            there[n].tune.config,
            there[n].tune.samples_per_second,
            len(there[n].tune.searched),
        )
        for n in range(5)
    ]


def test_real_trials_run_on_hosts_with_code_that_is_shipped_and_a_signal_ends_them(
    nodes, tmp_path
):
    (tmp_path / "job.py").write_bytes((ROOT / "tests/workloads.py").read_bytes())
    (tmp_path / "sweep.yaml").write_text(SWEEP)

    def start(*arguments):
        options = ["--on", "ray", "--storage", str(tmp_path / "trials.db")]
        command = [AUTOFIT, "sweep", "sweep.yaml", *options, *arguments]
        return subprocess.Popen(
            command,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def servers():
        found = psutil.process_iter(["cmdline", "cwd"])
        return [
            one
            for one in found
            if one.info["cwd"] == str(tmp_path)
            and "autofit.trial" in str(one.info["cmdline"])
        ]

    ended = start()
    wait_for(servers)
    ended.send_signal(signal.SIGTERM)
    output = ended.communicate(timeout=800)[0]
    assert ended.returncode == 128 + signal.SIGTERM, output
    wait_for(lambda: not servers())
    whole = start("--ship", ".")
    output = whole.communicate(timeout=800)[0]
    assert whole.returncode == 0, output
    rows = list(csv.DictReader((tmp_path / "sweep.csv").open()))
    assert [(row["outcome"], row["host"]) for row in rows] == [
        ("ok", platform.node()),
        ("failed", platform.node()),
    ]
    assert (
        "_ray_pkg_" in rows[1]["problem"]
    )  # the code that ran is the copy on the host
    assert "RuntimeError: the model cannot be built" in rows[1]["problem"]


def test_a_cell_on_a_host_that_dies_goes_on_elsewhere(nodes, tmp_path):
    cluster, hosts = nodes
    killer = threading.Timer(
        3, cluster.remove_node, [hosts[1]], {"allow_graceful": False}
    )
    killer.start()
    swept = dict(tune_on_ray(cells(tmp_path, ["small"] * 4), tune, "ray", None, print))
    killer.join()
    assert [swept[n].outcome for n in range(4)] == ["ok"] * 4
