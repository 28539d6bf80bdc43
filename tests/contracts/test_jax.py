import json

from autofit.records.knobs import FitConfig
from tests.commands import python
from tests.contracts.cases import Contract
from tests.installed import needs

# A step of 4 KiB of weights and a batch of 2 MiB, run and estimated; and what is done
# with a batch where there is a GPU.
PROGRAM = """
import json, pathlib, jax, keras, numpy as np
from types import SimpleNamespace
from autofit.backends.jax.backend import Jax
from autofit.backends.jax.step_footprint import StepFootprint
from autofit.backends.protocol import TrainStep
from autofit.records.machine import Device, Placement
from autofit.trial.worker import bench, timing

batch = (np.ones((512, 1024), "float32"), np.ones((512, 1), "float32"))
gpu = Device(0, "a GPU", "GPU-1", 2**34, 2**34)
model = keras.Sequential([keras.Input((1024,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(*batch, batch_size=512, verbose=0)
beyond = max(Jax()._beyond_state(jax.local_devices()[0].client, 0))
on = [StepFootprint(TrainStep(model, batch, device)) for device in (None, gpu)]
estimated = []
for step in on:
    footprint = next(step.estimates([512], compile_all=True))
    estimated.append(footprint.device_bytes_by_part["input_batch"])

seen = []
data = SimpleNamespace(batch=lambda: batch, batch_samples=512, taken=None, kind="")
context = SimpleNamespace(placement=Placement.on(gpu), folder=pathlib.Path("none"))
made = SimpleNamespace(context=context, data=data, model=model, has_own_method=False)
made.repeating = lambda batches, *_: seen.append(isinstance(batches[0][0], jax.Array))
next(timing._time_step(made))
late = SimpleNamespace(block_until_ready=lambda: seen.append("waited"))
bench.Bench.idle_model(made, 1).train_step((), (late,))
print(json.dumps([beyond, *estimated, *seen]))
"""


class TestJax(Contract):
    backend = "jax"

    def test_one_size_alone_is_compiled_before_a_tune(self, run):
        _, described = run(
            FitConfig(32), "describe", spec={"batch_sizes": (32, 128, 1)}
        )
        assert [footprint.batch_size for footprint in described.footprints] == [32]


def test_a_gpu_holds_the_batch_of_the_next_step_as_well_and_copies_to_it_are_part_of_the_input():
    needs("jax")
    printed = python(
        "-c", PROGRAM, KERAS_BACKEND="jax", JAX_PLATFORMS="cpu"
    ).splitlines()[-1]
    beyond, on_cpu, on_gpu, timed, waited = json.loads(printed)
    assert on_gpu == 2 * on_cpu >= 2 * 2**21
    assert (
        beyond >= on_gpu
    )  # from what this version of JAX reports of the programs that have run
    assert (timed, waited) == (
        True,
        "waited",
    )  # the step alone is timed on an array of JAX
