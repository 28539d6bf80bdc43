"""What a program has set, read from stand-ins of its frameworks."""

import sys
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from autofit.errors import UsageError
from autofit.workload.binding import call_source_of
from autofit.workload.program import Program, read_program, require_distribution
from autofit.workload.workload import Workload
from tests.unit.workload.functions import build, make

CONTEXT = "tensorflow.python.eager.context"
CORES = psutil.cpu_count(logical=False)
FLASH = "is_flash_attention_enabled"
DEFAULTS = {
    "keras": {
        "floatx": "float32", "epsilon": 1e-07,
        "image_data_format": "channels_last", FLASH: None,
    },
    "torch": {"get_float32_matmul_precision": "highest", "get_num_threads": CORES},
    "jax": {"jax_enable_x64": False, "jax_default_matmul_precision": None},
    "policy": "float32", "tf32": True, "threads": None,
}  # fmt: skip  # one item a line would be longer, not clearer
SET = {
    "keras": {
        "floatx": "float16", "epsilon": 1e-3,
        "image_data_format": "channels_first", FLASH: False,
    },
    "torch": {"get_float32_matmul_precision": "high", "get_num_threads": 99},
    "jax": {"jax_enable_x64": True, "jax_default_matmul_precision": "high"},
    "policy": "float32", "tf32": False, "threads": 1,
}  # fmt: skip  # one item a line would be longer, not clearer


def answering(values):
    return SimpleNamespace(
        **{name: lambda value=value: value for name, value in values.items()}
    )


@pytest.fixture
def load(monkeypatch):
    """Nothing is loaded; returns what loads stand-ins."""

    def load(values, objects=None):
        config = answering(
            {**values["keras"], "dtype_policy": SimpleNamespace(name=values["policy"])}
        )
        threads = {
            f"_{pool}_op_parallelism_threads": values["threads"]
            for pool in ("intra", "inter")
        }
        tf32 = answering({"tensor_float_32_execution_enabled": values["tf32"]})
        loaded = {
            "keras": SimpleNamespace(
                config=config, saving=answering({"get_custom_objects": objects or {}})
            ),
            CONTEXT: answering({"context_safe": SimpleNamespace(**threads)}),
            "tensorflow": SimpleNamespace(config=SimpleNamespace(experimental=tf32)),
            "jax": SimpleNamespace(config=SimpleNamespace(**values["jax"])),
            "torch": answering(values["torch"]),
        }
        for name, module in loaded.items():
            monkeypatch.setitem(sys.modules, name, module)

    for name in ("keras", CONTEXT, "tensorflow", "jax", "torch"):
        monkeypatch.setitem(sys.modules, name, None)
    return load


def test_defaults_and_what_is_not_loaded_are_not_set_and_own_custom_objects_count(load):
    assert read_program() == Program()
    load(DEFAULTS, {"own": build, "of pytest": pytest.fixture})
    assert read_program() == Program(custom_objects={"own": build})


def test_what_is_set_is_a_line_that_sets_it_again(load):
    load(SET)
    lines = read_program().lines
    assert lines[0] == "keras.config.set_floatx('float16')"
    assert "tf.config.threading.set_intra_op_parallelism_threads(1)" in lines
    assert len(lines) == 12
    assert call_source_of(Workload(build, make)).imports[:2] == (
        "import keras",
        "import tensorflow as tf",
    )


@pytest.mark.parametrize(
    ("name", "shape", "count", "remedy"),
    [
        ("DataParallel", (2,), 2, None),
        ("DataParallel", (2,), 1, "over 2 devices, .* give device: 2x cpu, or"),
        ("DataParallel", (2, 1), 2, "only a DataParallel over a row"),
        ("ModelParallel", (2,), 2, "has set a ModelParallel .* only a DataParallel"),
    ],
)
def test_a_distribution_is_a_line_or_refused_with_what_to_do(
    keras, name, shape, count, remedy
):
    mesh = SimpleNamespace(devices=np.full(shape, "cpu:0"))
    distribution = type(name, (), {"device_mesh": mesh})()
    keras.distribution.distribution = lambda: distribution
    if remedy is None:
        require_distribution(count)
        assert any("list_devices()[:2]" in line for line in read_program().lines)
    else:
        with pytest.raises(UsageError, match=remedy):
            require_distribution(count)
