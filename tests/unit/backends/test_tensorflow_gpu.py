"""The TensorFlow backend on a GPU, as far as it can be tested without one: caches, visible GPUs, the pool."""

import pytest

from autofit.backends.tensorflow.backend import TensorFlow, cache_variables
from autofit.records.machine import Device

GIB = 2**30
SMALL = Device(0, "RTX 4060", "GPU-1", 8 * GIB, round(7.6 * GIB), compute_capability=(8, 9))


MINE = {
    "CUDA_CACHE_MAXSIZE": "1000",
    "TF_XLA_FLAGS": "--tf_xla_persistent_cache_directory=mine",
    "XLA_FLAGS": "--xla_gpu_per_fusion_autotune_cache_dir=mine",
}
SET = {
    "CUDA_CACHE_MAXSIZE": str(4 * GIB),
    "TF_XLA_FLAGS": "--tf_xla_persistent_cache_directory=/c",
    "XLA_FLAGS": "--xla_dump_to=there --xla_gpu_per_fusion_autotune_cache_dir=/c",
}


@pytest.mark.parametrize(
    ("present", "version", "expected"),
    [
        ({"XLA_FLAGS": "--xla_dump_to=there"}, "2.21.0", SET),
        (MINE, "2.21.0", {"CUDA_CACHE_MAXSIZE": "1000"}),  # the user's own caches stay
        *(({}, version, {"CUDA_CACHE_MAXSIZE": str(4 * GIB)}) for version in ("2.20.0", "1", "nightly")),  # unknown flags
    ],
)
def test_processes_of_a_tune_share_what_is_compiled_for_a_gpu(present, version, expected):
    assert cache_variables(present, "/c", version) == expected


def test_a_limit_above_tensorflows_pool_is_reported_with_the_lines_to_add():
    pool = TensorFlow().pool_bytes(SMALL)
    assert TensorFlow().problems(SMALL, pool) == ()
    (problem,) = TensorFlow().problems(SMALL, 7 * GIB)
    assert "LogicalDeviceConfiguration(memory_limit=7168)" in problem
    assert "RTX 4060" in problem
    assert TensorFlow().problems(Device(0, "unknown", "GPU-2", 8 * GIB, 8 * GIB), 7 * GIB) == ()
