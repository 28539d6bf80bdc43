"""What the backends do that the design rests on, measured: JAX 0.10, torch 2.13, Keras 3.15."""

import os
import subprocess
import sys

import pytest

from autofit.backends.torch.backend import Torch
from autofit.records.machine import Device, Placement
from tests.installed import needs


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
