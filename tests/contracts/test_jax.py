import json

from tests.commands import python
from tests.contracts.cases import Contract
from tests.installed import needs

# a step of 4 KiB of weights and a batch of 2 MiB, run and estimated
PROGRAM = """
import json, jax, keras, numpy as np
from autofit.backends.jax.backend import Jax
from autofit.backends.jax.step_footprint import StepFootprint
from autofit.backends.protocol import TrainStep
from autofit.records.machine import Device

batch = np.ones((512, 1024), "float32"), np.ones((512, 1), "float32")
model = keras.Sequential([keras.Input((1024,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(*batch, batch_size=512, verbose=0)
beyond = max(Jax()._beyond_state(jax.local_devices()[0].client, 0))
on = [StepFootprint(TrainStep(model, batch, device)) for device in (None, Device(0, "a GPU", "GPU-1", 2**34, 2**34))]
estimated = [next(step.estimates([512], compile_all=True)).device_bytes_by_part["input_batch"] for step in on]
print(json.dumps([beyond, *estimated]))
"""


class TestJax(Contract):
    backend = "jax"


def test_a_gpu_holds_the_batch_of_the_next_step_as_well():
    needs("jax")
    beyond, on_cpu, on_gpu = json.loads(python("-c", PROGRAM, KERAS_BACKEND="jax", JAX_PLATFORMS="cpu").splitlines()[-1])
    assert on_gpu == 2 * on_cpu >= 2 * 2**21
    assert beyond >= on_gpu  # from what this version of JAX reports of the programs that have run
