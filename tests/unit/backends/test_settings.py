"""The decisions that the backends make without being loaded.

They are the environment, limits, caches and the selection.
"""

import importlib.metadata
import importlib.util
import os
import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from autofit import backends, records
from autofit.backends import absent_gpu, protocol
from autofit.backends.jax.backend import Jax
from autofit.backends.tensorflow.backend import TensorFlow, cache_variables
from autofit.backends.torch.backend import Torch
from autofit.errors import UsageError
from autofit.records.description import Footprint
from autofit.records.machine import ON_CPU, Device, Placement

GIB = 2**30
GPU = Device(0, "some GPU", "GPU-1", 80 * GIB, 78 * GIB)
SMALL = Device(
    0, "RTX 4060", "GPU-1", 8 * GIB, round(7.6 * GIB), compute_capability=(8, 9)
)
ONE, BOTH = Placement.on(GPU), Placement.on(GPU, replace(GPU, uuid="GPU-2"))
JAX_CACHE = "JAX_COMPILATION_CACHE_DIR"
MOST = str(4 * GIB)
NAMES = (
    "XLA_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    JAX_CACHE,
    "KERAS_BACKEND",
    "NCCL_DEBUG",
    "XLA_FLAGS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TF_DEVICE_MIN_SYS_MEMORY_IN_MB",
)


@pytest.fixture(autouse=True)
def none_set(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("backend", "placement", "expected"),
    [
        (
            TensorFlow(),
            ON_CPU,
            {
                "CUDA_VISIBLE_DEVICES": "-1",
                "HIP_VISIBLE_DEVICES": "-1",
                "XLA_FLAGS": None,
            },
        ),
        (TensorFlow(), ONE, {"CUDA_VISIBLE_DEVICES": "GPU-1", "NCCL_DEBUG": None}),
        (
            TensorFlow(),
            BOTH,
            {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2", "NCCL_DEBUG": "WARN"},
        ),
        (
            Jax(),
            ON_CPU,
            {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu", JAX_CACHE: "/c"},
        ),
        (Jax(), ONE, {"CUDA_VISIBLE_DEVICES": "GPU-1", "JAX_PLATFORMS": None}),
        (
            Jax(),
            Placement(count=2),
            {"JAX_NUM_CPU_DEVICES": "2", "PJRT_NPROC": str(2 * (Jax.steps_ahead + 4))},
        ),
        (Torch(), ON_CPU, {"CUDA_VISIBLE_DEVICES": "-1", "KERAS_TORCH_DEVICE": "cpu"}),
        (
            Torch(),
            ONE,
            {"KERAS_TORCH_DEVICE": "cuda", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"},
        ),
        (Torch(), ONE, {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}),  # for a tf.data pipeline
    ],
)
def test_a_trial_gets_its_backend_and_sees_its_devices_alone(
    monkeypatch, backend, placement, expected
):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.21.0")
    variables = backend.environment(placement, "/c")
    expected = {"KERAS_BACKEND": backend.name, **expected}
    assert {name: variables.get(name) for name in expected} == expected


XLA_CACHE = "--xla_gpu_per_fusion_autotune_cache_dir"
TF_CACHE = "--tf_xla_persistent_cache_directory"


@pytest.mark.parametrize(
    ("present", "version", "expected"),
    [
        (
            {"XLA_FLAGS": "-x"},
            "2.21.0",
            {"TF_XLA_FLAGS": f"{TF_CACHE}=/c", "XLA_FLAGS": f"-x {XLA_CACHE}=/c"},
        ),
        (
            {"TF_XLA_FLAGS": f"{TF_CACHE}=mine", "XLA_FLAGS": f"{XLA_CACHE}=mine"},
            "2.21.0",
            {},
        ),
        ({}, "2.20.0", {}),  # XLA aborts on flags that it does not know
    ],
)
def test_processes_of_a_tune_share_what_is_compiled_unless_the_user_has_a_cache(
    monkeypatch, present, version, expected
):
    assert cache_variables(present, "/c", version) == {
        "CUDA_CACHE_MAXSIZE": MOST,
        **expected,
    }
    monkeypatch.setenv(JAX_CACHE, "/mine")
    assert JAX_CACHE not in Jax().environment(ON_CPU, "/c")


@pytest.mark.parametrize(
    ("fraction", "expected"), [(None, 60), ("0.5", 40), ("0.99", 78), ("a half", None)]
)
def test_jax_takes_its_share_of_the_whole_gpu_by_itself(
    monkeypatch, fraction, expected
):
    if fraction:
        monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", fraction)
    assert Jax().pool_bytes(GPU) == (None if expected is None else expected * GIB)
    assert Jax().pool_bytes(None) is None


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, None),
        ({"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.5"}, 40),
        (
            {
                "PYTORCH_ALLOC_CONF": "max_split_size_mb:64, per_process_memory_fraction: 0.99"
            },
            78,
        ),
        (
            {
                "PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.25",
                "PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:.5",
            },
            40,
        ),
        ({"PYTORCH_ALLOC_CONF": "per_process_memory_fraction:."}, None),
    ],
)
def test_torch_takes_the_share_that_its_allocator_is_given(
    monkeypatch, variables, expected
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert Torch().pool_bytes(GPU) == (None if expected is None else expected * GIB)
    assert Torch().pool_bytes(None) is None


def test_tensorflow_leaves_to_libraries_what_it_is_given(monkeypatch):
    usual = TensorFlow().pool_bytes(SMALL)
    monkeypatch.setenv("TF_DEVICE_MIN_SYS_MEMORY_IN_MB", "2560")
    assert usual - TensorFlow().pool_bytes(SMALL) == GIB


BUILT_WITHOUT = {
    "torch": "RuntimeError: CUDA error: no kernel image is available for execution on the device",
    "XLA's linker": "LLVM ERROR: PTX version 8.5 does not support target 'sm_120'.",
    "a launch": "InternalError: 'cuLaunchKernel(...)' failed with 'CUDA_ERROR_INVALID_HANDLE'",
    "PTX": "InternalError: Failed to load PTX: CUDA_ERROR_INVALID_PTX: a PTX JIT failed",
}


@pytest.mark.parametrize("text", BUILT_WITHOUT.values(), ids=BUILT_WITHOUT)
def test_a_gpu_for_which_a_backend_was_not_built_is_named(monkeypatch, text):
    monkeypatch.setattr(protocol, "version", lambda name: "2.21.0")
    gpu = replace(GPU, name="NVIDIA RTX 5090", compute_capability=(12, 0))
    with pytest.raises(
        UsageError, match=r"NVIDIA RTX 5090 \(compute capability 12\.0\): \w+"
    ) as raised:
        protocol.require_code(TensorFlow(), gpu, "a line\n", f"before\n{text}\nafter")
    assert "tensorflow 2.21.0 was not built for" in str(raised.value)
    assert "jax or torch" in str(raised.value)
    warning = (
        "W gpu_device.cc:2431] TensorFlow was not built with CUDA kernel binaries "
        "compatible with"
    )
    protocol.require_code(
        TensorFlow(), gpu, f"CUDA_ERROR_OUT_OF_MEMORY {warning}", "ValueError: x"
    )


@pytest.mark.parametrize(
    ("backend", "gpu", "variables", "limit", "named"),
    [
        (
            TensorFlow(),
            SMALL,
            {},
            7 * GIB,
            "LogicalDeviceConfiguration(memory_limit=7168)",
        ),
        (
            TensorFlow(),
            GPU,
            {"TF_GPU_ALLOCATOR": "cuda_malloc"},
            50 * GIB,
            "TF_GPU_ALLOCATOR=cuda_malloc",
        ),
        (Jax(), GPU, {}, 72 * GIB, "XLA_CLIENT_MEM_FRACTION=0.90"),
        (
            Jax(),
            GPU,
            {"XLA_PYTHON_CLIENT_ALLOCATOR": "vmm"},
            50 * GIB,
            "XLA_PYTHON_CLIENT_ALLOCATOR=vmm",
        ),
        (
            Jax(),
            GPU,
            {"XLA_PYTHON_CLIENT_ALLOCATOR": "address"},
            50 * GIB,
            "XLA_PYTHON_CLIENT_ALLOCATOR=address",
        ),
        (
            Jax(),
            GPU,
            {"TF_FORCE_UNIFIED_MEMORY": "1"},
            50 * GIB,
            "TF_FORCE_UNIFIED_MEMORY=1",
        ),
        (
            Jax(),
            GPU,
            {"XLA_FLAGS": "-x --xla_gpu_memory_fraction_policy=0.1+"},
            50 * GIB,
            "memory_fraction_policy=0.1+",
        ),
        (
            Torch(),
            GPU,
            {"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.45"},
            50 * GIB,
            "torch.cuda.set_per_process_memory_fraction(0.62)",
        ),
        (
            Torch(),
            GPU,
            {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
            50 * GIB,
            "PYTORCH_NO_CUDA_MEMORY_CACHING",
        ),
    ],
)
def test_settings_that_make_trials_unreliable_are_reported(
    backend, gpu, variables, limit, named, monkeypatch
):
    assert list(backend.problems(gpu, 5 * GIB)) == []
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert named in next(backend.problems(gpu, limit))


@pytest.mark.parametrize(
    ("backend", "copies"), [(TensorFlow(), True), (Jax(), False), (Torch(), False)]
)
def test_arrays_that_keras_copies_to_the_gpu_are_reported(backend, copies):
    assert list(backend.problems(GPU, 50 * GIB, 5 * GIB)) == []
    assert [
        "copies the arrays" in text for text in backend.problems(GPU, 50 * GIB, 6 * GIB)
    ] == [True] * copies


def test_a_wait_for_the_gpu_leaves_the_core_to_the_input(monkeypatch):
    calls = []

    class Event:
        def __init__(self, blocking=False):
            self.record = lambda: calls.append("record")
            self.synchronize = lambda: calls.append(("wait", blocking))

    monkeypatch.setitem(
        sys.modules,
        "torch",
        SimpleNamespace(cuda=SimpleNamespace(Event=Event, is_initialized=lambda: True)),
    )
    Torch().end_of(None)()
    assert calls == ["record", ("wait", True)]


def test_the_share_of_a_gpu_that_a_limit_is(monkeypatch):
    pool = {"bytes_limit": 40 * GIB}
    devices = [SimpleNamespace(memory_stats=lambda: pool)]
    jax = SimpleNamespace(
        default_backend=lambda: "gpu",
        local_device_count=lambda: 2,
        local_devices=lambda: devices,
    )
    shares = []
    cuda = SimpleNamespace(
        is_available=lambda: True,
        get_device_properties=lambda number: SimpleNamespace(total_memory=79 * GIB),
        set_per_process_memory_fraction=shares.append,
        max_memory_reserved=lambda: 3,  # what the share limits
        max_memory_allocated=lambda: 2,
    )
    modules = {"jax": jax, "tensorflow": None, "torch": SimpleNamespace(cuda=cuda)}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "")
    Jax().set_limit(BOTH, 40 * GIB)
    Torch().set_limit(ONE, 40 * GIB)
    assert (os.environ["XLA_CLIENT_MEM_FRACTION"], shares, Torch().peak_bytes(ONE)) == (
        "0.500000",
        [40 / 79],
        3,
    )
    pool["bytes_limit"] = 79 * GIB
    with pytest.raises(
        UsageError,
        match=r"JAX takes up to 79.0 GiB .*XLA_CLIENT_MEM_FRACTION allows it 40.0 GiB",
    ):
        Jax().set_limit(BOTH, 40 * GIB)
    jax.local_device_count = lambda: 1
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    with pytest.raises(
        UsageError, match=r"JAX_PLATFORMS=cpu hides the GPU from JAX: unset it"
    ):
        Jax().set_limit(BOTH, 40 * GIB)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda,cpu")
    with pytest.raises(UsageError, match=r"JAX does not see .*jax-gpu"):
        Jax().set_limit(BOTH, 40 * GIB)


def test_what_xla_tried_while_it_compiled_is_not_in_the_peak_of_jax(monkeypatch):
    stats = {"peak_bytes_in_use": 9 * GIB, "bytes_in_use": 2 * GIB}

    def program(arguments, results, kept, temporaries):
        sizes = {
            "argument": arguments,
            "output": results,
            "alias": kept,
            "temp": temporaries,
        }
        memory = SimpleNamespace(
            **{f"{name}_size_in_bytes": size * GIB for name, size in sizes.items()}
        )
        return SimpleNamespace(get_compiled_memory_stats=lambda: memory)

    client = SimpleNamespace(
        live_executables=lambda: [program(1, 1, 0, 0), program(2.25, 2, 2, 3)]
    )
    gpu = SimpleNamespace(memory_stats=lambda: stats, client=client)
    errors = SimpleNamespace(JaxRuntimeError=RuntimeError)
    monkeypatch.setitem(
        sys.modules, "jax", SimpleNamespace(local_devices=lambda: [gpu], errors=errors)
    )
    assert (
        Jax().peak_bytes(ONE) == (2 + 2 * 0.25 + 3) * GIB
    )  # arrays, two batches, temporaries
    stats["bytes_in_use"] = 2.5 * GIB  # with arrays of others
    assert Jax().peak_bytes(ONE) == (2.5 + 2 * 0.25 + 3) * GIB
    stats["peak_bytes_in_use"] = 5 * GIB
    assert (Jax().peak_bytes(ONE), Jax().peak_bytes(ON_CPU)) == (5 * GIB, None)


@pytest.mark.parametrize(
    ("retries", "allocated", "limit", "said"),
    [
        (2, 40, 60, "again 2 times to stay below the limit"),
        (
            0,
            20,
            60,
            "reserved 2.0 times .* PYTORCH_ALLOC_CONF=expandable_segments:True",
        ),
        (0, 36, 60, "^$"),
        (0, 20, 90, "^$"),  # there is room enough
    ],
)
def test_what_the_allocator_of_torch_had_to_do_is_said(
    monkeypatch, retries, allocated, limit, said
):
    stats = {"num_alloc_retries": 9}  # of algorithms that the first step tried
    peak = [allocated * GIB]
    cuda = SimpleNamespace(
        memory_stats=lambda: stats,
        empty_cache=lambda: None,
        reset_accumulated_memory_stats=stats.clear,
        reset_peak_memory_stats=lambda: peak.__setitem__(0, 0),
        max_memory_reserved=lambda: 40 * GIB,
        max_memory_allocated=lambda: peak[0],
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    torch = Torch()
    torch.peak_bytes(ONE)
    torch.reset_peak(ONE, release=True)
    stats["num_alloc_retries"] = stats.get("num_alloc_retries", 0) + retries
    torch.peak_bytes(ONE)  # of a phase in which no step runs
    notice = torch.allocator_notice(40 * GIB, limit * GIB)
    assert re.search(said, notice)
    assert not TensorFlow().allocator_notice(40 * GIB, limit * GIB)


def test_a_tiny_net_that_is_counted_for_a_gpu_takes_no_gigabytes_of_it():
    tiny = Footprint(
        32, {"weights": 2**16, "optimizer": 2**17, "temporaries": 2**20}, "walk", 0.5
    )
    assert absent_gpu.counted(tiny).upper_bytes <= 0.6 * GIB


@pytest.mark.parametrize("of_trainer", [{}, {"_build_multi_step_scan": None}])
def test_whether_a_call_stacks_its_batches_follows_from_the_installed_keras(
    monkeypatch, of_trainer
):
    trainer = SimpleNamespace(**of_trainer)
    monkeypatch.setitem(sys.modules, "keras.src.backend.jax.trainer", trainer)
    assert Jax().stacks_steps() == bool(of_trainer)
    assert not TensorFlow().stacks_steps()


def test_switches_are_part_of_what_a_result_depends_on_and_caches_and_logs_are_not(
    monkeypatch,
):
    monkeypatch.setattr(protocol, "version", lambda name: "1.0")
    others = {JAX_CACHE, "HOME", "TF_CPP_MIN_LOG_LEVEL"}
    given = {
        "OMP_NUM_THREADS",
        "JAX_ENABLE_X64",
        "XLA_FLAGS",
        "TF_GPU_ALLOCATOR",
        *others,
    }
    for name in given:
        monkeypatch.setenv(name, "1")
    switches = {
        Jax(): {"JAX_ENABLE_X64", "XLA_FLAGS"},
        Torch(): set(),
        TensorFlow(): {"XLA_FLAGS", "TF_GPU_ALLOCATOR"},
    }
    for backend, expected in switches.items():
        assert given & backend.settings().keys() == {"OMP_NUM_THREADS"} | expected


def test_a_backend_is_selected_by_name_by_the_environment_or_by_the_file(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    assert backends.current().name == "tensorflow"
    (tmp_path / "keras.json").write_text('{"backend": "torch", "floatx": "float16"}')
    assert backends.current().name == "torch"
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    assert (backends.current().name, backends.named("tensorflow").name) == (
        "jax",
        "tensorflow",
    )


def test_a_missing_backend_is_an_error_with_a_remedy(monkeypatch):
    with pytest.raises(UsageError, match=r"'openvino' .*tensorflow, jax, torch"):
        backends.named("openvino")
    monkeypatch.setattr(importlib.util, "find_spec", {"jax": "jax"}.get)
    with pytest.raises(
        UsageError, match=r"torch.*pip install 'keras-autofit\[torch\]'.*backend to jax"
    ):
        backends.named("torch")


@pytest.mark.parametrize(
    ("version", "remedy"),
    [
        ((3, 13), "run pip install tensorflow"),
        ((3, 14), "use Python 3.13, for which it has wheels"),
    ],
)
def test_a_missing_tensorflow_is_an_error_that_says_where_it_can_be_had(
    monkeypatch, version, remedy
):
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    monkeypatch.setattr(records, "sys", SimpleNamespace(version_info=version))
    monkeypatch.setattr(importlib.util, "find_spec", {"jax": "jax"}.get)
    with pytest.raises(
        UsageError, match=rf"tensorflow .*{remedy}.*, or set KERAS_BACKEND to jax"
    ):
        backends.current()
    monkeypatch.setattr(importlib.util, "find_spec", {}.get)
    with pytest.raises(
        UsageError, match=rf"{remedy}.*keras-autofit\[jax\].*KERAS_BACKEND to jax"
    ):
        backends.current()


def test_a_batch_that_is_timed_again_and_again_lies_on_the_device(monkeypatch, keras):
    tree = SimpleNamespace(map=lambda call, batch: [call(leaf) for leaf in batch])
    jax = SimpleNamespace(tree=tree, device_put=lambda leaf: f"{leaf} on the GPU")
    monkeypatch.setitem(sys.modules, "jax", jax)
    keras.tree = SimpleNamespace(map_structure=tree.map)
    keras.ops = SimpleNamespace(convert_to_tensor=jax.device_put)
    assert Jax().on_device(["x", "y"]) == ["x on the GPU", "y on the GPU"]
    assert (Torch().on_device(["x", None]), TensorFlow().on_device(["x"])) == (
        ["x on the GPU", None],
        ["x"],
    )
