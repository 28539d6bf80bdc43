"""The limit of a GPU against what user code configures.

It is set in TensorFlow's own context, with a GPU that the context is told of.
"""

import json

import pytest

from tests.commands import python

PROGRAM = """
import json, os, sys, traceback
import tensorflow as tf
from tensorflow.python.eager import context as eager
from autofit.backends.tensorflow.backend import TensorFlow
from autofit.errors import UsageError
from autofit.records.machine import Device, Placement

tf.config.list_physical_devices()
context = eager.context()
gpus = [tf.config.PhysicalDevice(f"/physical_device:GPU:{n}", "GPU") for n in (0, 1)]
for known in (context._physical_devices, context._visible_device_list):
    known += gpus
context._memory_growth_map |= {gpu: None for gpu in gpus}
limited, other = gpus
configure = tf.config.set_logical_device_configuration

def megabytes(count):
    return [tf.config.LogicalDeviceConfiguration(memory_limit=count)]

def limits():
    configured = map(tf.config.get_logical_device_configuration, gpus)
    return [[int(each.memory_limit) for each in parts or []] for parts in configured]

def run(code):
    try:
        TensorFlow().set_limit(Placement.on(Device(0, "a GPU", "GPU-1", 2**34, 2**34)), 8 * 2**30)
        exec(code, globals())
    except UsageError as error:
        return error.key
    except BaseException:
        return traceback.format_exc()
    return json.dumps(limits())

for name, code in json.loads(sys.argv[1]).items():
    read, write = os.pipe()
    if not os.fork():
        os.write(write, run(code).encode()[-4000:])
        os._exit(0)
    os.wait()
    os.close(write)
    print(json.dumps([name, os.read(read, 4000).decode()]))
"""
ONE, BOTH = "[[8192], []]", "[[8192], [8192]]"
# what user code does, and the limits in MiB then, or the key of the error
CASES = {
    "nothing": ("", ONE),
    "memory growth": (
        "for gpu in gpus: tf.config.experimental.set_memory_growth(gpu, True)",
        ONE,
    ),
    "a larger limit": ("configure(limited, megabytes(10_000))", ONE),
    "a smaller limit": ("configure(limited, megabytes(4096))", "device_memory"),
    "the limit of another GPU": (
        "configure(other, megabytes(4096))",
        "[[8192], [4096]]",
    ),
    "no GPU": ("tf.config.set_visible_devices([], 'GPU')", "device"),
    "this GPU only": ("tf.config.set_visible_devices(limited, 'GPU')", ONE),
    "two GPUs that train together": (
        "devices = [Device(n, 'a GPU', f'GPU-{n}', 2**34, 2**34) for n in (1, 2)]\n"
        "TensorFlow().set_limit(Placement.on(*devices), 8 * 2**30)\n"
        "for gpu in gpus: tf.config.experimental.set_memory_growth(gpu, True)",
        BOTH,
    ),
}


@pytest.fixture(scope="module")
def ends():
    """What each case leads to, in a process of its own."""
    cases = json.dumps({case: code for case, (code, _) in CASES.items()})
    return dict(
        map(
            json.loads,
            python("-c", PROGRAM, cases, CUDA_VISIBLE_DEVICES="-1").splitlines(),
        )
    )


@pytest.mark.parametrize("case", CASES)
def test_the_limit_holds_against(ends, case):
    assert ends[case] == CASES[case][1]
