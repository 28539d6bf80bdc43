"""What a program has set, read from stand-ins of its frameworks."""

import sys
from types import SimpleNamespace

import psutil
import pytest

from autofit.workload.binding import call_source_of
from autofit.workload.program import Program, read_program
from autofit.workload.workload import Workload
from tests.unit.workload.functions import build, make

CONTEXT = "tensorflow.python.eager.context"


def answering(**values):
    return SimpleNamespace(**{name: lambda value=value: value for name, value in values.items()})


def frameworks(floatx, epsilon, image_format, policy, flash, tf32, x64, precision, matmul, threads, objects=None):
    config = {"floatx": floatx, "epsilon": epsilon, "image_data_format": image_format}
    config |= {"dtype_policy": SimpleNamespace(name=policy), "is_flash_attention_enabled": flash}
    experimental = answering(tensor_float_32_execution_enabled=tf32)
    return {
        "keras": SimpleNamespace(config=answering(**config), saving=answering(get_custom_objects=objects or {})),
        "tensorflow": SimpleNamespace(config=SimpleNamespace(experimental=experimental)),
        "jax": SimpleNamespace(config=SimpleNamespace(jax_enable_x64=x64, jax_default_matmul_precision=precision)),
        "torch": answering(get_float32_matmul_precision=matmul, get_num_threads=threads),
    }


CORES = psutil.cpu_count(logical=False)
DEFAULTS = ("float32", 1e-07, "channels_last", "float32", None, True, False, None, "highest", CORES)


@pytest.fixture(autouse=True)
def loaded(monkeypatch):
    """Nothing is loaded; returns how to load stand-ins."""

    def load(modules):
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)

    load(dict.fromkeys(("keras", CONTEXT, "tensorflow", "jax", "torch")))
    return load


def test_defaults_and_what_is_not_loaded_are_not_set(loaded):
    assert read_program() == Program()
    loaded(frameworks(*DEFAULTS))
    assert read_program() == Program()


def test_what_is_set_is_a_line_that_sets_it_again(loaded):
    context = SimpleNamespace(_intra_op_parallelism_threads=1, _inter_op_parallelism_threads=None)
    loaded({CONTEXT: answering(context_safe=context)})
    loaded(frameworks("float16", 1e-3, "channels_first", "float32", False, False, True, "highest", "high", 99))
    program = read_program()
    assert program.lines[:6] == (
        "keras.config.set_floatx('float16')",
        "keras.config.set_epsilon(0.001)",
        "keras.config.set_image_data_format('channels_first')",
        "keras.config.set_dtype_policy('float32')",
        "keras.config.disable_flash_attention()",
        "tf.config.threading.set_intra_op_parallelism_threads(1)",
    )
    assert len(program.lines) == 11
    assert call_source_of(Workload(build, make)).imports[:2] == ("import keras", "import tensorflow as tf")


@pytest.mark.parametrize("context", [None, object()])
def test_a_setting_that_another_version_does_not_have_counts_as_its_default(loaded, context):
    loaded({CONTEXT: answering(context_safe=context), "keras": SimpleNamespace(), "torch": SimpleNamespace()})
    assert read_program() == Program()


def test_the_users_own_custom_objects_count(loaded):
    loaded(frameworks(*DEFAULTS, objects={"own": build, "of pytest": pytest.fixture}))
    assert read_program().custom_objects == {"own": build}
