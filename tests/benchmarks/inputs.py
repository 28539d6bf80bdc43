"""Host memory of inputs: that of a plain `fit` against a trial, a confirming run, and the estimate
before any run.

    python tests/benchmarks/inputs.py            print the table of the measurements in inputs.json
    python tests/benchmarks/inputs.py --measure  first measure the cases missing in inputs.json
                                                 (all: six minutes)

Method. Each kind of input, with and without validation data, holds or makes 0.05, 0.5 and 4 GiB
(those that are made batch by batch: 0.5 GiB an epoch), in samples of 256 KiB and batches of 16, for
a model of one dense layer. The plain `fit` is a program of its own that imports Keras, makes the
data and trains an epoch: its peak is the highest resident set that the kernel counted (none of the
kinds starts processes), without the pages of files, which are not counted in a trial either. The
trial, the confirming run and the estimate are autofit's own. Both run under a limit of TensorFlow's
CPU allocator, as a trial does that has a device limit.
"""

import argparse
import json
import math
import os
import pathlib
import subprocess
import sys

import psutil

from autofit.machine.host import ProcessMemory
from autofit.records.knobs import FitConfig
from autofit.records.states import Role
from autofit.records.trial import Limits, TrialSpec
from autofit.search.memory import host_bytes_by_part
from autofit.trial.launcher import ProcessLauncher
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload

HERE = pathlib.Path(__file__).parent
FROZEN = HERE / "inputs.json"
GIB = 2**30
SIDE = 256
BATCH = 16
SAMPLE_BYTES = 4 * SIDE * SIDE
LIMITS = Limits(14 * GIB, 22 * GIB)
SECONDS = 600.0
SIZES = {
    "arrays": (0.05, 0.5, 4),
    "made_arrays": (0.05, 0.5, 4),
    "slices": (0.05, 0.5, 3),
    "batches": (0.5,),
    "generated": (0.5,),
}
"""GiB by kind; tf.data holds its arrays four times, which of 4 GiB is more than 22."""


def pictures(gib):
    """Arrays of about so many GiB."""
    import numpy as np

    count = max(4 * BATCH, round(gib * GIB / SAMPLE_BYTES) // BATCH * BATCH)
    x = np.empty((count, SIDE, SIDE, 1), "float32")
    x[:] = 1
    return x, np.ones((count, 1), "float32")


def slices(gib, batch_size=BATCH):
    import tensorflow as tf

    return (
        tf.data.Dataset.from_tensor_slices(pictures(gib))
        .batch(batch_size)
        .prefetch(tf.data.AUTOTUNE)
    )


def batches(gib, batch_size=BATCH, **kwargs):
    """A PyDataset that makes its batches."""
    import keras
    import numpy as np

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return math.ceil(gib * GIB / SAMPLE_BYTES / batch_size)

        def __getitem__(self, index):
            return np.ones((batch_size, SIDE, SIDE, 1), "float32"), np.ones(
                (batch_size, 1), "float32"
            )

    return Batches(**kwargs)


def generated(gib, batch_size=BATCH):
    """A generator that makes its batches."""
    made = batches(gib, batch_size)
    for index in range(len(made)):
        yield made[index]


def build_model():
    """A model that takes little beside its data."""
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 1)),
            layers.AveragePooling2D(16),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse")
    return model


def plain(kind, gib, validation_gib):
    model = build_model()
    held_out = pictures(validation_gib) if validation_gib else None
    if kind in ("arrays", "made_arrays"):
        x, y = pictures(gib)
        model.fit(x, y, batch_size=BATCH, validation_data=held_out, verbose=0)
    else:
        model.fit(
            globals()[kind](gib),
            validation_data=held_out,
            validation_batch_size=BATCH,
            verbose=0,
        )


def measure_plain(kind, gib, validation_gib):
    """Run `plain` in a process of its own; returns its peak."""
    environment = {
        **os.environ,
        "TF_CPU_ALLOCATOR_USE_BFC": "1",
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    command = [sys.executable, __file__, "--plain", kind, str(gib), str(validation_gib)]
    output = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    return int(output.split()[-1])


def measure_trials(kind, gib, validation_gib):
    """The peaks of autofit's trial and confirming run, and the estimate."""
    function = {"made_arrays": "pictures"}.get(kind, kind)
    factory = (
        Reference(f"inputs.py:{function}", str(HERE))
        if kind != "arrays"
        else pictures(gib)
    )
    workload = Workload(
        Reference("inputs.py:build_model", str(HERE)),
        factory,
        validation=pictures(validation_gib) if validation_gib else None,
        data_kwargs={} if kind == "arrays" else {"gib": gib},
    )
    config = FitConfig(BATCH, 1, 10, False) if kind == "batches" else FitConfig(BATCH)
    with ProcessLauncher(workload) as launcher:
        described = launcher.run(
            TrialSpec(Role.DESCRIBE, config, LIMITS, SECONDS, batch_sizes=(BATCH,))
        )
        footprint = described.footprints[0]
        readings = {
            "estimate": sum(
                host_bytes_by_part(described, config, footprint.step_bytes).values()
            )
        }
        for role in (Role.MEASURE, Role.CONFIRM):
            trial = launcher.run(TrialSpec(role, config, LIMITS, SECONDS, 1.0))
            assert trial.samples_per_second, trial.evidence
            readings[role.value] = trial.host_peak_bytes
    return readings


def print_table(frozen):
    """Print the peaks, and those of autofit relative to the plain ones."""
    print(f"{'':30} {'plain':>10} {'trial':>8} {'confirming':>11} {'estimate':>9}")
    for key, case in frozen.items():
        plain_mib = case["plain"] / 2**20
        ratios = [
            case[name] / case["plain"] - 1
            for name in ("measure", "confirm", "estimate")
        ]
        print(
            f"{key:30} {plain_mib:6,.0f} MiB {ratios[0]:>+8.1%} {ratios[1]:>+11.1%} "
            f"{ratios[2]:>+9.1%}"
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measure", action="store_true")
    parser.add_argument(
        "--plain",
        nargs=3,
        metavar=("KIND", "GIB", "VALIDATION"),
        help=argparse.SUPPRESS,
    )
    arguments = parser.parse_args()
    if arguments.plain:
        kind, gib, validation_gib = arguments.plain
        plain(kind, float(gib), float(validation_gib))
        used = ProcessMemory.of(psutil.Process())
        print(used.held + used.highest_resident - used.resident)
        return
    frozen = json.loads(FROZEN.read_text())
    cases = [
        *((kind, gib, 0.0) for kind, sizes in SIZES.items() for gib in sizes),
        ("arrays", 0.5, 0.25),
    ]
    for kind, gib, validation_gib in cases if arguments.measure else ():
        key = f"{kind} {gib:g} GiB" + (
            f", {validation_gib:g} held out" if validation_gib else ""
        )
        if key in frozen:
            continue
        before = measure_trials(kind, gib, validation_gib)
        frozen[key] = {"plain": measure_plain(kind, gib, validation_gib), **before}
        FROZEN.write_text(json.dumps(frozen).replace("}, ", "},\n") + "\n")
        print(key, flush=True)
    print_table(frozen)


if __name__ == "__main__":
    main()
