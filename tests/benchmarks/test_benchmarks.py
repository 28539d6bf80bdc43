"""The benchmarks run, and print their frozen output."""

import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow
HERE = pathlib.Path(__file__).parent


OUTPUTS = ("inputs", "memory", "search", "live", "confirmation", "phases", "public_tunes")


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_output_is_the_frozen_one(name):
    process = subprocess.run([sys.executable, HERE / f"{name}.py"], capture_output=True, text=True, check=True, timeout=800)
    assert process.stdout == (HERE / f"{name}.txt").read_text()


def test_the_validation_page_follows_from_the_frozen_outputs():
    subprocess.run([sys.executable, HERE / "validation.py", "--check"], check=True, timeout=800)


def test_a_simulated_gpu_is_filled_without_an_oom():
    command = [sys.executable, HERE / "gpu_memory.py", "--searches", "16"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=800).stdout.splitlines()
    assert lines[-1].startswith("out of memory: 0 of ")
    after_six = lines[-2].split()
    assert (after_six[0], float(after_six[2]) >= 0.87, float(after_six[-1]) <= 1.0) == ("6", True, True)


def test_every_way_of_searching_runs_on_a_surface_and_a_table(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    import peers
    import search

    for name in [p.name for p in [*peers.peers(), *peers.ablations()] if p.name != "GP"]:  # GP: Optuna's needs torch
        for kind, what in (("surface", 2000), ("table", "tiny")):
            rows = search.search((name, "a group", kind, what, None, 0), budgets=(6,))
            assert [r[4] for r in rows] == [6]
            assert all(0 <= r[5] <= 1 and 0 <= r[6] <= r[7] and r[8] > 0 for r in rows)


def test_the_curves_of_real_gpus_are_searched(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    import search

    for kind, group in search.GPU_CURVE_GROUPS.items():
        for name in set(search.ON_GPU_CURVES) - {"GP"}:
            (row,) = search.search((name, group, kind, "zeus|v100|imagenet/resnet50", None, 0))
            assert 0 <= row[5] <= (0.05 if name == "autofit" else 1)
