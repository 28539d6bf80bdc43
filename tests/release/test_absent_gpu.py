"""Steps compiled for GPUs that are not there.

XLA's compiler does it on JAX and TensorFlow; on torch they are counted.
"""

import autofit
from tests import workloads as w
from tests.installed import needs

GPUS = ("T4", "A100-40GB")


def test_the_memory_on_a_gpu_that_is_not_there_is_estimated():
    temporaries = {}
    for backend in ("jax", "tensorflow", "torch"):
        needs(backend)
        needs("jax_cuda12_plugin")
        asked = {
            "backend": backend,
            "gpu": GPUS,
            "model_kwargs": {"xla": "auto"},
            "progress": False,
        }
        estimate = autofit.estimate(w.build_model, w.Cases, **asked)
        assert [gpu.gpu for gpu in estimate.gpus] == list(GPUS)
        for gpu in estimate.gpus:
            assert not gpu.problem
            assert gpu.largest_batch_size >= 32
            sizes = [footprint.device_bytes for footprint in gpu.footprints]
            assert sizes == sorted(sizes)
            assert gpu.usable_bytes < gpu.total_bytes
        temporaries[backend] = [
            each.device_bytes_by_part["temporaries"]
            for each in estimate.gpus[1].footprints
        ]
    # the compiler assigns about the same memory to a step of both
    for pair in zip(temporaries["jax"][:2], temporaries["tensorflow"][:2], strict=True):
        assert 0 < max(pair) <= 1.3 * min(pair) + 2**20
