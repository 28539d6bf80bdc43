"""What the backends do that the design rests on, measured: JAX 0.10, torch 2.13, Keras 3.15."""

import json
import os
import subprocess
import sys

import pytest

from autofit.backends.torch.backend import Torch
from autofit.records.machine import Device, Placement
from tests.installed import needs

STEPS_UNDER_WAY = """
import json, queue, threading
import jax, keras, numpy as np
layers = keras.layers
model = keras.Sequential([keras.Input((1024,)), *[layers.Dense(1024) for _ in range(6)], layers.Dense(1)])
model.compile("sgd", "mse")
begun, over, waiting, most = 0, 0, queue.Queue(), 0
def wait():
    global over
    while True:
        jax.block_until_ready(waiting.get())
        over += 1
threading.Thread(target=wait, daemon=True).start()
make = model.make_train_function
def counted(force=False):
    make(force)
    step = model.train_function
    def count(*arguments):
        global begun, most
        made = step(*arguments)
        begun += 1
        waiting.put(made[0])
        most = max(most, begun - over)
        return made
    model.train_function = count
model.make_train_function = counted
class Data(keras.utils.PyDataset):
    def __len__(self):
        return 100
    def __getitem__(self, index):
        return np.ones((256, 1024), "float32"), np.ones((256, 1), "float32")
model.fit(Data(), verbose=0)
print(json.dumps(most))
"""


def test_jax_begins_about_32_steps_at_most_before_the_first_is_over():
    needs("jax")
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    output = subprocess.check_output([sys.executable, "-c", STEPS_UNDER_WAY], env=environment, text=True, timeout=280)
    assert 1 < json.loads(output.splitlines()[-1]) <= 36  # fewer where a step takes no longer than to begin one


def test_keras_on_torch_is_imported_without_a_call_that_keeps_forked_processes_from_the_gpu(tmp_path):
    needs("torch")
    code = "import torch\ncalls = []\ntorch.cuda.is_available = lambda: bool(calls.append(1))\nimport keras\nprint(calls)\n"
    gpu = Placement.on(Device(0, "some GPU", "GPU-1", 80 * 2**30, 78 * 2**30))
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_TORCH_DEVICE"}
    environment |= Torch().environment(gpu, tmp_path)
    output = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True, timeout=280)
    assert output.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", ["jax", "torch"])
def test_a_backend_that_is_imported_and_has_run_nothing_survives_a_fork(name):
    needs(name)
    code = (
        "import os, keras, numpy as np\n"
        "child = os.fork()\n"
        "model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]) if child == 0 else None\n"
        "if child == 0:\n"
        "    model.compile('sgd', 'mse'); model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0); os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    environment = {**os.environ, "KERAS_BACKEND": name, "CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
    assert subprocess.check_output([sys.executable, "-c", code], env=environment, text=True, timeout=280).strip() == "7"
