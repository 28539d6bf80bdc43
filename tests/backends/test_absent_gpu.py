"""Steps compiled for GPUs that are not there: by XLA's compiler on JAX and TensorFlow, counted on torch."""

import pytest

import autofit
from tests import workloads as w
from tests.installed import needs

GPUS = ("T4", "A100-40GB")


@pytest.fixture(scope="module")
def estimates():
    made = {}

    def estimates(backend):
        needs(backend)
        needs("jax_cuda12_plugin")
        if backend not in made:
            made[backend] = autofit.estimate(
                w.build_model, w.Cases, backend=backend, gpu=GPUS, model_kwargs={"xla": "auto"}, progress=False
            )
        return made[backend]

    return estimates


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "tensorflow", "torch"])
def test_the_memory_on_a_gpu_that_is_not_there_is_estimated(estimates, backend):
    estimate = estimates(backend)
    assert [gpu.gpu for gpu in estimate.gpus] == list(GPUS)
    for gpu in estimate.gpus:
        assert not gpu.problem
        assert gpu.largest_batch_size >= 32
        assert all(footprint.device_bytes_by_part["temporaries"] or backend == "torch" for footprint in gpu.footprints)
        sizes = [footprint.device_bytes for footprint in gpu.footprints]
        assert sizes == sorted(sizes)
        assert gpu.usable_bytes < gpu.total_bytes
        assert gpu.footprints[0].method.startswith("tensors counted" if backend == "torch" else "XLA, compiled for the GPU")


@pytest.mark.slow
def test_the_compiler_assigns_about_the_same_memory_to_a_step_of_tensorflow_and_of_jax(estimates):
    on_jax, on_tensorflow = (estimates(backend).gpus[1].footprints for backend in ("jax", "tensorflow"))
    for one, other in zip(on_jax[:2], on_tensorflow[:2], strict=True):
        temporaries = [footprint.device_bytes_by_part["temporaries"] for footprint in (one, other)]
        assert one.batch_size == other.batch_size
        assert max(temporaries) <= 1.3 * min(temporaries) + 2**20
