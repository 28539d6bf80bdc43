"""Several devices in words and in code."""

from dataclasses import replace

import pytest

from autofit.records.machine import Device, Placement
from autofit.report import snippet
from tests.fakes import MACHINE, with_fields

GPUS = tuple(Device(n, "A100", f"GPU-{n}", 2**36, 2**36) for n in range(3))


@pytest.mark.parametrize(
    ("placement", "backend", "lines"),
    [
        (
            Placement.on(GPUS[0], GPUS[2]),
            "tensorflow",
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
            [
                "import keras",
                "keras.distribution.set_distribution(keras.distribution.DataParallel())",
                "model = build_model(width=8)",
            ],
        ),
    ],
)
def test_the_lines_to_paste_build_the_model_for_the_devices_of_the_tune(record, placement, backend, lines):
    placed = {"device": placement.name, "placement": placement, "machine": replace(MACHINE, devices=GPUS)}
    call_source = replace(record.call_source, distribution="data_parallel")
    description = replace(record.description, versions={"backend": backend})
    code = snippet.render(with_fields(record, call_source=call_source, description=description, **placed))
    compile(code, "snippet", "exec")
    written = code.splitlines()
    positions = [written.index(line) for line in lines]
    assert positions == sorted(positions)
    assert ("CUDA_VISIBLE_DEVICES" in code) is bool(placement.gpus)
