"""The decisions that the JAX and torch backends make without loading either."""

import ctypes
import importlib.util
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from autofit import backends
from autofit.backends import protocol
from autofit.backends.jax.backend import Jax
from autofit.backends.protocol import keras_settings
from autofit.backends.tensorflow.backend import TensorFlow
from autofit.backends.torch.backend import Torch
from autofit.errors import UsageError
from autofit.records.machine import ON_CPU, Device, Placement

GIB = 2**30
GPU = Device(0, "some GPU", "GPU-1", 80 * GIB, 78 * GIB)
CACHE = Path("/tmp/compiled")


@pytest.fixture(autouse=True)
def none_set(monkeypatch):
    for name in ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION", "JAX_COMPILATION_CACHE_DIR", "KERAS_BACKEND"):
        monkeypatch.delenv(name, raising=False)


BOTH = Placement.on(GPU, replace(GPU, uuid="GPU-2"))


@pytest.mark.parametrize(
    ("backend", "placement", "expected"),
    [
        *((backend, ON_CPU, {"CUDA_VISIBLE_DEVICES": "-1"}) for backend in (TensorFlow(), Jax(), Torch())),
        (TensorFlow(), ON_CPU, {"HIP_VISIBLE_DEVICES": "-1", "XLA_FLAGS": None}),
        (TensorFlow(), Placement.on(GPU), {"CUDA_VISIBLE_DEVICES": "GPU-1", "NCCL_DEBUG": None}),
        (TensorFlow(), BOTH, {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2", "NCCL_DEBUG": "WARN"}),
        (Jax(), ON_CPU, {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": None}),
        (Jax(), Placement.on(GPU), {"CUDA_VISIBLE_DEVICES": "GPU-1", "JAX_PLATFORMS": None}),
        (Jax(), BOTH, {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2", "NCCL_DEBUG": "WARN"}),
        (Jax(), Placement(count=2), {"JAX_NUM_CPU_DEVICES": "2", "PJRT_NPROC": str(2 * (Jax.steps_ahead + 4))}),
        (Torch(), ON_CPU, {"KERAS_TORCH_DEVICE": "cpu"}),
        (Torch(), Placement.on(GPU), {"KERAS_TORCH_DEVICE": "cuda", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}),
    ],
)
def test_a_trial_gets_its_backend_and_sees_its_devices_alone(backend, placement, expected, monkeypatch):
    monkeypatch.delenv("NCCL_DEBUG", raising=False)
    variables, expected = backend.environment(placement, CACHE), {"KERAS_BACKEND": backend.name, **expected}
    assert {name: variables.get(name) for name in expected} == expected


def test_what_is_compiled_is_shared_unless_the_user_has_a_cache(monkeypatch):
    assert Jax().environment(ON_CPU, CACHE)["JAX_COMPILATION_CACHE_DIR"] == str(CACHE)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/mine")
    assert "JAX_COMPILATION_CACHE_DIR" not in Jax().environment(ON_CPU, CACHE)


@pytest.mark.parametrize(("fraction", "expected"), [(None, 60), ("0.5", 40), ("0.99", 78), ("a half", None)])
def test_jax_takes_its_share_of_the_whole_gpu_by_itself(monkeypatch, fraction, expected):
    if fraction:
        monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", fraction)
    assert Jax().pool_bytes(GPU) == (None if expected is None else expected * GIB)
    assert Jax().pool_bytes(None) is None


@pytest.mark.parametrize(
    ("backend", "variables", "limit", "named"),
    [
        (Jax(), {}, 72 * GIB, "XLA_CLIENT_MEM_FRACTION=0.90"),
        (Jax(), {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}, 50 * GIB, "XLA_PYTHON_CLIENT_ALLOCATOR=platform"),
        (Torch(), {"KERAS_TORCH_DEVICE": "cpu"}, 50 * GIB, "trains on the CPU, but trials train on some GPU"),
        (Torch(), {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, 50 * GIB, "PYTORCH_NO_CUDA_MEMORY_CACHING"),
    ],
)
def test_settings_that_make_trials_unreliable_are_reported(backend, variables, limit, named, monkeypatch):
    assert backend.problems(None, None) == backend.problems(GPU, 50 * GIB) == ()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert named in backend.problems(GPU, limit)[0]


class Cuda:
    """Stands for libcuda: a GPU whose total is a little less than the driver's."""

    def __init__(self, *totals):
        def get(device, number):
            device._obj.value = number

        def total_of(total, device):
            total._obj.value = totals[device.value]

        self.cuInit, self.cuDeviceGet, self.cuDeviceTotalMem_v2 = lambda flags: 0 if totals else 100, get, total_of


@pytest.mark.parametrize(
    ("totals", "fraction"), [((), "0.500000"), ((79 * GIB,), "0.506329"), ((79 * GIB, 40 * GIB), "1.000000")]
)
def test_jaxs_share_is_of_the_total_that_cuda_reports(monkeypatch, totals, fraction):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Cuda(*totals))
    jax = SimpleNamespace(default_backend=lambda: "gpu", local_device_count=lambda: 2)
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "")
    Jax().set_limit(Placement.on(*(GPU for _ in totals or (0,))), 40 * GIB)
    assert os.environ["XLA_CLIENT_MEM_FRACTION"] == fraction


def test_what_xla_tried_while_it_compiled_is_not_in_the_peak_of_jax(monkeypatch):
    stats = {"peak_bytes_in_use": 9 * GIB, "bytes_in_use": 2 * GIB}

    def program(arguments, results, kept, temporaries):
        sizes = {"argument": arguments, "output": results, "alias": kept, "temp": temporaries}
        memory = SimpleNamespace(**{f"{name}_size_in_bytes": size * GIB for name, size in sizes.items()})
        return SimpleNamespace(get_compiled_memory_stats=lambda: memory)

    programs = [program(1, 1, 0, 0), program(2.25, 2, 2, 3)]
    client = SimpleNamespace(live_executables=lambda: programs)
    gpu = SimpleNamespace(memory_stats=lambda: stats, client=client)
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(local_devices=lambda: [gpu]))
    assert Jax().peak_bytes(Placement.on(GPU)) == (2 + 2 * 0.25 + 3) * GIB  # arrays, two batches, temporaries
    stats["peak_bytes_in_use"] = 5 * GIB
    assert Jax().peak_bytes(Placement.on(GPU)) == 5 * GIB
    assert Jax().peak_bytes(ON_CPU) is None


def test_torchs_share_is_of_the_total_that_cuda_reports_and_failed_allocations_are_the_slow_zone(monkeypatch):
    shares = []
    cuda = SimpleNamespace(
        is_available=lambda: True,
        get_device_properties=lambda number: SimpleNamespace(total_memory=79 * GIB),
        set_per_process_memory_fraction=shares.append,
        memory_stats=lambda: {"num_alloc_retries": 2, "num_ooms": 3},
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    Torch().set_limit(Placement.on(GPU), 40 * GIB)
    assert shares == [40 / 79]
    assert [Torch().retries(placement) for placement in (Placement.on(GPU), ON_CPU)] == [5, 0]


def test_switches_are_part_of_what_a_result_depends_on_and_caches_are_not(monkeypatch):
    monkeypatch.setattr(protocol, "version", lambda name: "1.0")
    given = {"JAX_ENABLE_X64", "XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR", "HOME", "TORCH_LOGS"}
    for name in given:
        monkeypatch.setenv(name, "1")
    for backend, expected in ((Jax(), {"JAX_ENABLE_X64", "XLA_FLAGS"}), (Torch(), {"TORCH_LOGS"})):
        assert given & backend.settings().keys() == expected


def test_a_backend_is_selected_by_name_by_the_environment_or_by_the_file(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    assert backends.current().name == "tensorflow"
    (tmp_path / "keras.json").write_text('{"backend": "torch", "floatx": "float16"}')
    assert backends.current().name == "torch"
    settings = keras_settings({"KERAS_HOME": str(tmp_path)})
    assert (settings["floatx"], settings["image_data_format"]) == ("float16", "channels_last")
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    assert backends.current().name == "jax"
    assert backends.named("tensorflow").name == "tensorflow"


def test_a_missing_backend_is_an_error_with_a_remedy(monkeypatch):
    with pytest.raises(UsageError, match=r"'openvino' .*tensorflow, jax, torch"):
        backends.named("openvino")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"torch.*pip install 'keras-autofit\[torch\]'"):
        backends.named("torch")
    monkeypatch.setattr(importlib.util, "find_spec", {"jax": "jax"}.get)
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    with pytest.raises(UsageError, match=r"tensorflow.*pip install tensorflow.*KERAS_BACKEND to jax"):
        backends.current()
