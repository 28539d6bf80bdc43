"""The limit of a GPU against what user code configures; with TensorFlow's own context, and a GPU that it is told of."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, os, sys, traceback
import tensorflow as tf
from tensorflow.python.eager import context as eager
from autofit.backends.tensorflow.backend import TensorFlow
from autofit.errors import UsageError
from autofit.records.machine import Device, Placement

tf.config.list_physical_devices()
context, gpus = eager.context(), [tf.config.PhysicalDevice(f"/physical_device:GPU:{n}", "GPU") for n in (0, 1)]
for known in (context._physical_devices, context._visible_device_list):
    known += gpus
context._memory_growth_map |= {gpu: None for gpu in gpus}
limited, other = gpus

def limit_of(gpu):
    return [each.memory_limit for each in tf.config.get_logical_device_configuration(gpu) or []]

def run(code):
    try:
        TensorFlow().set_limit(Placement.on(Device(0, "a GPU", "GPU-1", 2**34, 2**34)), 8 * 2**30)
        exec(code, globals())
    except BaseException:
        return traceback.format_exc()
    return ""

for name, code in json.loads(sys.argv[1]).items():
    read, write = os.pipe()
    if not os.fork():
        os.write(write, run(code).encode()[-4000:])
        os._exit(0)
    os.wait()
    os.close(write)
    print(json.dumps([name, os.read(read, 4000).decode()]))
"""
CASES = {
    "nothing": """
assert limit_of(limited) == [8192]
assert limit_of(other) == []
""",
    "memory growth, as TensorFlow's guide asks for it": """
for gpu in tf.config.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(gpu, True)
assert limit_of(limited) == [8192]
assert tf.config.experimental.get_memory_growth(other)
""",
    "the same by the name of the module": """
from tensorflow.config.experimental import set_memory_growth
set_memory_growth(limited, True)
assert limit_of(limited) == [8192]
""",
    "a larger limit": """
tf.config.set_logical_device_configuration(limited, [tf.config.LogicalDeviceConfiguration(memory_limit=10_000)])
assert limit_of(limited) == [8192]
""",
    "a smaller limit": """
try:
    tf.config.set_logical_device_configuration(limited, [tf.config.LogicalDeviceConfiguration(memory_limit=4096)])
except UsageError as error:
    assert str(error).startswith("device_memory: your code limits the GPU to 4.00 GiB"), error
    assert "4096MiB" in str(error)
else:
    raise AssertionError("taken")
""",
    "the limit of another GPU": """
tf.config.set_logical_device_configuration(other, [tf.config.LogicalDeviceConfiguration(memory_limit=4096)])
assert (limit_of(limited), limit_of(other)) == ([8192], [4096])
""",
    "no GPU": """
try:
    tf.config.set_visible_devices([], "GPU")
except UsageError as error:
    assert str(error).startswith("device: your code hides the GPU"), error
else:
    raise AssertionError("taken")
""",
    "two GPUs that train together": """
TensorFlow().set_limit(Placement.on(*(Device(n, "a GPU", f"GPU-{n}", 2**34, 2**34) for n in (1, 2))), 8 * 2**30)
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
assert (limit_of(limited), limit_of(other)) == ([8192], [8192])
""",
    "this GPU only": """
tf.config.set_visible_devices(limited, "GPU")
assert other not in tf.config.get_visible_devices("GPU")
assert limited in tf.config.get_visible_devices("GPU")
""",
}


@pytest.fixture(scope="module")
def problems():
    """What each case complains of, in a process of its own."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(CASES)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=280, env=environment)
    return dict(json.loads(line) for line in done.stdout.splitlines())


@pytest.mark.parametrize("case", CASES)
def test_the_limit_holds_against(problems, case):
    assert not problems[case]
