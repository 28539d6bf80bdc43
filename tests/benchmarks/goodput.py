"""The gradient noise scale: how often its interval has the exact value, and how well it predicts the time to a loss.

    python tests/benchmarks/goodput.py                    print the frozen figures
    python tests/benchmarks/goodput.py --run [PART ...]   run these (default: all) and freeze goodput.json

"intervals" (ten minutes). A linear regression of 20 inputs with noise has an exact noise scale. 200 trials as those of
`autofit noise`, each in a process of its own with batches drawn anew, read it on each backend with microbatches of 8 and of
64 samples. Counted are the intervals that contain it.

"trainings" (five minutes): see regressions.py. "exact" (ten minutes): see exact_races.py. "small" (20 minutes, needs
scikit-learn): see small_trainings.py. "races" (eight minutes): see races.py. "mnist", "mails", "flights" (a quarter of an
hour each, need npm and a network): see to_accuracy.py.
"""

import argparse
import json
import math
import os
import pathlib
import sys

import exact_races
import numpy as np
import races
import regressions
import small_trainings
import to_accuracy

from autofit.records.states import Role
from autofit.records.trial import FitConfig, Limits, TrialSpec
from autofit.trial.launcher import ProcessLauncher
from autofit.tuning.noise import of_measurement
from autofit.workload.workload import Workload

HERE = pathlib.Path(__file__).parent
FROZEN = HERE / "goodput.json"
BACKENDS, MICROBATCHES, TRIALS = ("tensorflow", "jax", "torch"), (8, 64), 200
WIDTH, SAMPLES, NOISE = 20, 100_000, 1.0
SPREAD = 1 / np.arange(1, WIDTH + 1.0)
TRUTH = np.random.default_rng(1).normal(size=WIDTH)
OTHERS = {
    "trainings": regressions,
    "exact": exact_races,
    "small": small_trainings,
    "races": races,
    **{each.name: each for each in to_accuracy.PROGRAMS},
}
PARTS = ("intervals", *OTHERS)


def rows():
    """Inputs and targets of the regression."""
    draw = np.random.default_rng(5)
    x = (draw.normal(size=(SAMPLES, WIDTH)) * np.sqrt(SPREAD)).astype("float32")
    return x, (x @ TRUTH + NOISE * draw.normal(size=SAMPLES)).astype("float32")[:, None]


def regression():
    """Its model, with weights of 0; each trial's data has an order of its own, which forks of one server would share."""
    import keras  # in the process that trains alone

    keras.utils.set_random_seed(os.getpid())
    inputs = keras.Input((WIDTH,))
    outputs = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")(inputs)
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(1e-12), "mse")
    return model


def exact_scale():
    """tr(Σ)/|G|² at weights of 0: 1 + (δᵀAδ + s²) tr A/|Aδ|², δ being the true weights and A the inputs' variances."""
    return 1 + ((SPREAD * TRUTH**2).sum() + NOISE**2) * SPREAD.sum() / np.square(SPREAD * TRUTH).sum()


def intervals(backend, batch):
    """The scales that trials read, each with its interval."""
    read = []
    with ProcessLauncher(Workload(regression, rows, backend=backend)) as launcher:
        spec = TrialSpec(
            Role.GRADIENTS, FitConfig(batch), Limits(None, 8 * 2**30), 60.0, measure_seconds=20.0, gradient_steps=(0,)
        )
        for _ in range(TRIALS):
            run = launcher.run(spec)
            try:
                while True:
                    next(run)
            except StopIteration as end:
                scale = of_measurement(end.value)
                read.append([scale.value, scale.low, scale.high])
    return read


def run(part):
    """Run a part; returns its figures."""
    if part in OTHERS:
        return OTHERS[part].run()
    return {f"{backend}, {batch}": intervals(backend, batch) for backend in BACKENDS for batch in MICROBATCHES}


def print_intervals(read):
    """Print how many intervals contain the exact scale."""
    exact = exact_scale()
    print(f"intervals: a regression with a noise scale of {exact:.2f} samples, {TRIALS} trials each")
    print("  backend, samples in a microbatch: intervals with the exact scale, median value, median width")
    for name, scales in read.items():
        inside = sum(low <= exact <= (math.inf if high is None else high) for _, low, high in scales) / len(scales)
        known = [each for each in scales if each[0] is not None]
        value = np.median([each[0] for each in known])
        width = np.median([each[2] / each[1] for each in known])
        print(f"  {name:16} {inside:6.1%}  {value:6.2f}  {width:.2f}x")


def main():
    """Print the frozen figures, or run and freeze."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", nargs="*", metavar="PART", help=f"run these (default: all): {', '.join(PARTS)}")
    arguments = parser.parse_args()
    frozen = json.loads(FROZEN.read_text()) if FROZEN.exists() else {}
    for part in [] if arguments.run is None else arguments.run or PARTS:
        frozen[part] = run(part)
        FROZEN.write_text(json.dumps(frozen) + "\n")
        print(part, "done", file=sys.stderr)
    frozen = json.loads(FROZEN.read_text())  # with text for the keys that were numbers
    if "intervals" in frozen:
        print_intervals(frozen["intervals"])
    for name, module in OTHERS.items():
        if name in frozen:
            module.print_figures(frozen[name])


if __name__ == "__main__":
    main()
