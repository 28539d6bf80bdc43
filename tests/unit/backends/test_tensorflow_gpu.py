"""The TensorFlow backend on a GPU, as far as it can be tested without one: caches, visible GPUs, the pool."""

import pytest

from autofit.backends.tensorflow.backend import TensorFlow, cache_variables
from autofit.records.machine import ON_CPU, Device, Placement

GIB = 2**30
SMALL = Device(0, "RTX 4060", "GPU-1", 8 * GIB, round(7.6 * GIB), compute_capability=(8, 9))


def test_processes_of_a_tune_share_what_is_compiled_for_a_gpu(tmp_path):
    variables = cache_variables({"XLA_FLAGS": "--xla_dump_to=there"}, tmp_path, "2.21.0")
    assert variables == {
        "CUDA_CACHE_MAXSIZE": str(4 * GIB),
        "TF_XLA_FLAGS": f"--tf_xla_persistent_cache_directory={tmp_path}",
        "XLA_FLAGS": f"--xla_dump_to=there --xla_gpu_per_fusion_autotune_cache_dir={tmp_path}",
    }


@pytest.mark.parametrize("version", ["2.20.0", "2.18.1", "1", "nightly"])
def test_flags_that_a_tensorflow_may_not_know_are_not_set(tmp_path, version):
    assert set(cache_variables({}, tmp_path, version)) == {"CUDA_CACHE_MAXSIZE"}


def test_the_users_own_caches_stay(tmp_path):
    present = {
        "CUDA_CACHE_MAXSIZE": "1000",
        "TF_XLA_FLAGS": "--tf_xla_persistent_cache_directory=mine",
        "XLA_FLAGS": "--xla_gpu_per_fusion_autotune_cache_dir=mine",
    }
    assert cache_variables(present, tmp_path, "2.21.0") == {"CUDA_CACHE_MAXSIZE": "1000"}


def test_a_trial_on_the_cpu_sees_no_gpu_of_any_make(tmp_path):
    variables = TensorFlow().environment(ON_CPU, tmp_path)
    assert (variables["CUDA_VISIBLE_DEVICES"], variables["HIP_VISIBLE_DEVICES"]) == ("-1", "-1")
    assert "XLA_FLAGS" not in variables
    assert TensorFlow().environment(Placement.on(SMALL), tmp_path)["CUDA_VISIBLE_DEVICES"] == "GPU-1"


def test_a_limit_above_tensorflows_pool_is_reported_with_the_lines_to_add():
    pool = TensorFlow().pool_bytes(SMALL)
    assert TensorFlow().problems(SMALL, pool) == ()
    (problem,) = TensorFlow().problems(SMALL, 7 * GIB)
    assert "LogicalDeviceConfiguration(memory_limit=7168)" in problem
    assert "RTX 4060" in problem
    assert TensorFlow().problems(Device(0, "unknown", "GPU-2", 8 * GIB, 8 * GIB), 7 * GIB) == ()
