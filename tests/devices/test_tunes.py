"""Whole tunes of models that several devices train together: logical devices of this CPU, by real strategies of Keras."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

import autofit
from autofit.backends.jax.backend import Jax
from autofit.errors import UsageError
from autofit.records.machine import Placement
from autofit.records.states import Outcome
from autofit.records.trial import FitConfig
from tests.devices import jobs
from tests.installed import needs

ROOT = Path(__file__).resolve().parents[2]
TWO = {"device": "2x cpu", "progress": False}
PARTS = """
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "build_model", "distribution", "parts"),
    [("tensorflow", jobs.build_mirrored, None, PARTS), ("jax", jobs.build, "data_parallel", "")],
)
def test_a_tune_on_two_devices_tries_even_batches_and_its_snippet_trains_on_both(
    tmp_path, backend, build_model, distribution, parts
):
    needs(backend)
    record = autofit.tune(
        build_model,
        jobs.Table,
        fit_kwargs={"callbacks": jobs.witnesses},
        backend=backend,
        distribution=distribution,
        space={
            "batch_size": {"min": 16, "max": 101},
            "workers": [1],
            "use_multiprocessing": [False],
            "max_queue_size": [4],
        },
        max_trials=2,
        storage=str(tmp_path / "trials.db"),
        **TWO,
    )
    assert record.placement == Placement(count=2)
    assert record.device == "CPU as 2 devices"
    ran = {trial.config.batch_size for trial in (*record.trials, *record.runs)}
    assert len(ran) > 1
    assert all(batch % 2 == 0 for batch in ran)
    batch = record.config.batch_size
    assert f"# batch {batch} is global: {batch // 2} on each of 2 devices" in record.snippet()
    witness = tmp_path / "witness"
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{parts}{record.snippet()}"
    variables = Jax().environment(Placement(count=2), tmp_path)
    environment = {**os.environ, "WITNESS": str(witness), "CUDA_VISIBLE_DEVICES": "-1"}
    environment |= {name: variables[name] for name in ("JAX_NUM_CPU_DEVICES", "PJRT_NPROC")}
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    assert witness.read_text() == f"2 {math.ceil(jobs.MOST / batch)}"


@pytest.mark.parametrize(
    ("backend", "build_model", "distribution"),
    [("tensorflow", jobs.build, "data_parallel"), ("jax", jobs.build_parallel, None)],
)
def test_batch_sizes_are_said_to_be_global(turn_two, play, backend, build_model, distribution):
    launcher = turn_two(build_model, backend=backend, distribution=distribution)
    described = play(launcher, FitConfig(), role="describe")
    (sizes,) = (text for text in described.notices if "2 devices" in text)
    assert "multiples of 2" in sizes
    measured = play(launcher, FitConfig(64, 1, 10, False))
    assert measured.samples_per_second * measured.step_seconds == pytest.approx(64)


@pytest.mark.parametrize(
    ("backend", "workload", "names"),
    [
        ("tensorflow", {}, ["2 devices", "on 1.", "MirroredStrategy"]),
        ("jax", {"build_model": jobs.build_by_model}, ["on 2 by ModelParallel", "DataParallel"]),
    ],
)
def test_a_model_that_does_not_train_on_both_devices_is_refused_with_a_remedy(turn_two, play, backend, workload, names):
    launcher = turn_two(backend=backend, **workload)
    with pytest.raises(UsageError) as caught:
        play(launcher, FitConfig(), role="describe")
    assert caught.value.key == "device"
    assert [name for name in names if name not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("arguments", "key", "name"),
    [
        ({"backend": "torch"}, "device", "torch"),
        ({"call": "predict"}, "device", "predict"),
        ({"device": "3x cpu", "baseline": {"batch_size": 32}}, "baseline.batch_size", "32"),
    ],
)
def test_arguments_that_do_not_suit_are_refused_before_anything_runs(arguments, key, name):
    needs(arguments.get("backend", "tensorflow"))
    with pytest.raises(UsageError) as caught:
        autofit.tune(jobs.build, jobs.Table, **{**TWO, **arguments})
    assert caught.value.key == key
    assert name in caught.value.problem


def test_the_devices_of_a_cpu_share_its_limit(turn_two, play):
    launcher = turn_two(jobs.build_mirrored, jobs.Table)
    measured = play(launcher, FitConfig(32, 1, 10, False), device_bytes=64 * 2**20)
    assert 0 < measured.device_peak_bytes < 64 * 2**20


@pytest.mark.slow
def test_a_model_with_a_strategy_on_one_device_is_told_of(turn, play):
    launcher = turn(jobs.build_mirrored, jobs.Table)
    described = play(launcher, role="describe")
    (notice,) = (text for text in described.notices if "MirroredStrategy" in text)
    assert "device: 2x gpu" in notice
    assert play(launcher, FitConfig(32, 1, 10, False)).outcome is Outcome.OK
