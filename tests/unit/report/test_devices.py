"""Several devices in words and in code: the lines to paste, and the columns of a sweep over their number."""

import re
from dataclasses import replace

import pytest

from autofit.records.machine import Device, Placement
from autofit.records.sweep import Cell
from autofit.records.trial import FitConfig
from autofit.report import choice, columns, snippet
from autofit.report.console.tables import summary, sweep_table
from autofit.report.console.terminal import plain_text
from tests.fakes import MACHINE, with_fields
from tests.unit.report.conftest import shown_cells
from tests.unit.report.snapshots import matches_snapshot

GPUS = tuple(Device(n, "A100", f"GPU-{n}", 2**36, 2**36) for n in range(3))


def on(record, placement, *, backend="tensorflow", distribution=None, **changes):
    """A record of a tune on these devices."""
    call_source = replace(
        record.call_source, distribution=distribution, imports=("from photos import Photos, build_model",)
    )
    description = replace(record.description, versions={"backend": backend})
    machine = replace(MACHINE, devices=GPUS)
    fields = {"placement": placement, "call_source": call_source, "description": description, "machine": machine, **changes}
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
                "strategy = tf.distribute.MirroredStrategy()",
                "with strategy.scope():",
                "    model = build_model(width=8)",
                "# batch 64 is global: 32 on each of 2 devices",
            ],
        ),
        (Placement.on(*GPUS), "tensorflow", "data_parallel", ["strategy = tf.distribute.MirroredStrategy()"]),
        (
            Placement.on(*GPUS[:2]),
            "jax",
            "data_parallel",
            [
                'os.environ["CUDA_VISIBLE_DEVICES"] = "GPU-0,GPU-1"',
                "import keras",
                "distribution = keras.distribution.DataParallel()",
                "keras.distribution.set_distribution(distribution)",
                "model = build_model(width=8)",
            ],
        ),
        (Placement.on(*GPUS), "jax", "data_parallel", ["distribution = keras.distribution.DataParallel()"]),
        (Placement.on(*GPUS[:2]), "tensorflow", None, ["model = build_model(width=8)"]),
        (
            Placement(count=2),
            "tensorflow",
            None,
            ["tf.config.set_logical_device_configuration(cpu, parts)", "model = build_model(width=8)"],
        ),
        (Placement(count=2), "jax", None, ['os.environ["JAX_NUM_CPU_DEVICES"] = "2"', "model = build_model(width=8)"]),
    ],
)
def test_the_lines_to_paste_build_the_model_for_the_devices_of_the_tune(record, placement, backend, distribution, lines):
    code = snippet.render(on(record, placement, backend=backend, distribution=distribution))
    compile(code, "snippet", "exec")
    written = code.splitlines()
    positions = [written.index(line) for line in lines]
    assert positions == sorted(positions)
    assert ("distribute" in code or "distribution" in code) is (distribution is not None)


def test_one_device_is_not_mentioned(record):
    code = snippet.render(on(record, Placement.on(GPUS[0]), distribution="data_parallel"))
    assert "distribut" not in code
    assert "global" not in code
    assert "devices" not in choice.sentences(record)


def test_a_result_says_what_the_batch_and_the_rate_of_each_device_are(record):
    shared = on(record, Placement.on(*GPUS[:2]))
    rate = f"{record.samples_per_second / 2:,.0f}"
    sentence = choice.sentences(shared)["devices"]
    assert sentence == f"batch 64 is global: 32 on each of 2 devices; {rate} samples/s on each"
    assert re.search(r"batch 64 .*\b32\b.*\b2 devices", " ".join(plain_text(summary(shared)).split()))


@pytest.fixture
def scaled(record, sweep):
    """Cells over numbers of devices, for two widths; one without a result."""
    rates = {(8, 1): 100.0, (8, 2): 180.0, (8, 4): 300.0, (16, 2): 90.0, (16, 4): 90.0}
    cells = []
    for (width, count), rate in rates.items():
        placement = Placement(count=count)
        chosen = replace(record.choice, config=FitConfig(32 * count, 1, 10, False), samples_per_second=rate)
        values = {"model_kwargs.width": width, "devices": count}
        cells.append(Cell(values, replace(on(record, placement), choice=chosen)))
    cells.insert(3, Cell({"model_kwargs.width": 16, "devices": 1}, None, "the code failed"))
    return replace(sweep, cells=tuple(cells))


def test_scaling_is_relative_to_the_fewest_devices_with_a_result(scaled):
    assert scaled.scaling_efficiencies() == (1.0, 0.9, 0.75, None, 1.0, 0.5)
    assert scaled.compares_devices


def test_a_sweep_over_devices_has_the_rate_of_each_and_the_scaling(scaled, sweep):
    text = plain_text(sweep_table(scaled))
    assert matches_snapshot(text, "sweep_over_devices.txt")
    rows = shown_cells(scaled)
    assert [row["scaling"].text for row in rows] == ["100%", "90%", "75%", "–", "100%", "50%"]
    assert [row["per device"].text for row in rows] == ["100", "90", "75", "–", "45", "22"]
    lines = columns.as_csv(scaled).splitlines()
    assert "device_count,samples_per_second_per_device,scaling_efficiency" in lines[0]
    assert ",2,90.0,0.9," in lines[2]
    assert "scaling" not in plain_text(sweep_table(sweep))
    assert sweep.scaling_efficiencies() == (None,) * len(sweep.cells)
    assert "scaling" not in shown_cells(sweep)[0]


def test_an_axis_that_sets_devices_with_something_else_is_one_of_devices(scaled):
    joined = [replace(cell, values={"devices, data_kwargs.n": cell.values["devices"]}) for cell in scaled.cells[:3]]
    sweep = replace(scaled, cells=tuple(joined))
    assert sweep.scaling_efficiencies() == (1.0, 0.9, 0.75)
