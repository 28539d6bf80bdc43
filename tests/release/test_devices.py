"""Whole tunes of models that several devices train together.

The devices are logical ones of this CPU, by real strategies of Keras.
"""

import math

import pytest

import autofit
from autofit.backends.jax.backend import Jax
from autofit.records.machine import Placement
from tests.commands import ROOT, python
from tests.devices import jobs
from tests.installed import needs

PARTS = """
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
"""


@pytest.mark.parametrize(
    ("backend", "build_model", "distribution", "parts"),
    [
        ("tensorflow", jobs.build_mirrored, None, PARTS),
        ("jax", jobs.build, "data_parallel", ""),
    ],
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
        device="2x cpu",
        distribution=distribution,
        space={
            "batch_size": {"min": 16, "max": 101},
            "workers": [1],
            "use_multiprocessing": [False],
            "max_queue_size": [4],
        },
        max_trials=2,
        storage=str(tmp_path / "trials.db"),
        progress=False,
    )
    assert record.placement == Placement(count=2)
    ran = {trial.config.batch_size for trial in (*record.trials, *record.runs)}
    assert len(ran) > 1
    assert all(batch % 2 == 0 for batch in ran)
    witness = tmp_path / "witness"
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{parts}{record.snippet()}"
    variables = Jax().environment(Placement(count=2), tmp_path)
    devices = {name: variables[name] for name in ("JAX_NUM_CPU_DEVICES", "PJRT_NPROC")}
    python("-c", code, WITNESS=str(witness), CUDA_VISIBLE_DEVICES="-1", **devices)
    assert witness.read_text() == f"2 {math.ceil(jobs.MOST / record.config.batch_size)}"
