"""Several devices in words and in code."""

from dataclasses import replace

import pytest

from autofit.records.machine import Device, Placement
from autofit.report import snippet
from tests.fakes import MACHINE, with_fields

GPUS = tuple(Device(n, "A100", f"GPU-{n}", 2**36, 2**36) for n in range(3))


def on(record, placement, *, backend="tensorflow", distribution=None):
    """A record of a tune on these devices."""
    call_source = replace(record.call_source, distribution=distribution)
    description = replace(record.description, versions={"backend": backend})
    machine = replace(MACHINE, devices=GPUS)
    fields = {"placement": placement, "call_source": call_source, "description": description, "machine": machine}
    return with_fields(record, device=placement.name, **fields)


@pytest.mark.parametrize(
    ("placement", "backend", "distribution", "lines"),
    [
        (
            Placement.on(GPUS[0], GPUS[2]),
            "tensorflow",
            "data_parallel",
            [
                'os.environ["CUDA_VISIBLE_DEVICES"] = "GPU-0,GPU-2"',
                "import tensorflow as tf",
                "with tf.distribute.MirroredStrategy().scope():",
                "    model = build_model(width=8)",
                "# batch 64 is global: 32 on each of 2 devices",
            ],
        ),
        (
            Placement(count=2),
            "jax",
            "data_parallel",
            [
                "import keras",
                "keras.distribution.set_distribution(keras.distribution.DataParallel())",
                "model = build_model(width=8)",
            ],
        ),
        (Placement.on(*GPUS[:2]), "tensorflow", None, ["model = build_model(width=8)"]),
    ],
)
def test_the_lines_to_paste_build_the_model_for_the_devices_of_the_tune(record, placement, backend, distribution, lines):
    code = snippet.render(on(record, placement, backend=backend, distribution=distribution))
    compile(code, "snippet", "exec")
    written = code.splitlines()
    positions = [written.index(line) for line in lines]
    assert positions == sorted(positions)
    assert ("CUDA_VISIBLE_DEVICES" in code) is bool(placement.gpus)
    assert ("distribute" in code or "distribution" in code) is (distribution is not None)
