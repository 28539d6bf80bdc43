"""The gradient noise scale: how often its interval has the exact value, and how well it predicts the time to a loss.

    python tests/benchmarks/goodput.py                    print the frozen figures
    python tests/benchmarks/goodput.py --run [PART ...]   run these (default: all) and freeze goodput.json

"intervals" (ten minutes). A linear regression of 20 inputs with noise has an exact noise scale. 200 trials as those of
`autofit noise`, each in a process of its own with batches drawn anew, read it on each backend with microbatches of 8 and of
64 samples. Counted are the intervals that contain it.

"trainings" (five minutes). Linear regressions are drawn at random: 10, 50 or 200 inputs, variances that fall as a power of
the index, starts and noise. SGD's expected loss on them follows a recursion, so the samples to a target loss are exact.
For each batch size, the learning rate that needs the fewest is found on a grid of 14. The noise scale on the way of batches
of 32 is exact too, at the last of steps 100, 400 and 1,600 before the target. It predicts that a sample in a batch of B
brings (φ + 32)/(φ + B) of one in a batch of 32. Counted are the true values within the band that a tune's summary states.

"small" (20 minutes, needs scikit-learn): see small_trainings.py. "races" (eight minutes): see races.py. "mnist", "mails",
"flights" (a quarter of an hour each, need npm and a network): see to_accuracy.py.
"""

import argparse
import json
import math
import os
import pathlib
import sys

import numpy as np
import races
import small_trainings
import to_accuracy

from autofit.records.noise import STEPS
from autofit.records.states import Role
from autofit.records.trial import FitConfig, Limits, TrialSpec
from autofit.report.choice import LAW_ERROR, SCALE_FACTOR
from autofit.trial.launcher import ProcessLauncher
from autofit.tuning.noise import of_measurement
from autofit.workload.workload import Workload

HERE = pathlib.Path(__file__).parent
FROZEN = HERE / "goodput.json"
BACKENDS, MICROBATCHES, TRIALS = ("tensorflow", "jax", "torch"), (8, 64), 200
WIDTH, SAMPLES, NOISE = 20, 100_000, 1.0
SPREAD = 1 / np.arange(1, WIDTH + 1.0)
TRUTH = np.random.default_rng(1).normal(size=WIDTH)
PROBLEMS, BASELINE, BATCHES = 100, 32, (128, 512, 2048)
RATES, MOST_STEPS = 14, 40_000
OTHERS = {"small": small_trainings, "races": races, **{each.name: each for each in to_accuracy.PROGRAMS}}
PARTS = ("intervals", "trainings", *OTHERS)


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


class Regression:
    """A random linear regression whose expected training by SGD is exact; its errors start uncorrelated."""

    def __init__(self, seed):
        draw = np.random.default_rng(seed)
        inputs = int(draw.choice([10, 50, 200]))
        self.variances = 1 / np.arange(1, inputs + 1.0) ** draw.uniform(0.3, 1.8)
        self.start = draw.chisquare(1, inputs)
        loss = self.variances @ self.start
        self.noise, self.target = loss * 10 ** draw.uniform(-2, 1), loss * 10 ** draw.uniform(-2, -0.7)

    def step(self, errors, batch, rate):
        """The expected squares of the errors of the weights after an update; Gaussian inputs."""
        a, excess = self.variances, self.variances @ errors
        spread = (1 + 1 / batch) * a * a * errors + (excess + self.noise) * a / batch
        return errors * (1 - 2 * rate * a) + rate * rate * spread

    def steps(self, batch, rate, most):
        """Updates to the target loss; None if they are more than `most`, or if the training diverges."""
        errors = self.start
        highest = 10 * (self.variances @ self.start)
        for count in range(most):
            loss = self.variances @ errors
            if loss <= self.target:
                return count
            if not loss < highest:
                return None
            errors = self.step(errors, batch, rate)
        return None

    def best(self, batch):
        """The fewest updates to the target loss and the learning rate that needs them; None if no rate reaches it."""
        highest = 1.8 / (self.variances.max() * (1 + 1 / batch) + self.variances.sum() / batch)
        best = None
        for power in range(RATES):
            rate = highest * 2 ** (-power / 2)
            count = self.steps(batch, rate, MOST_STEPS if best is None else best[0])
            if count is not None and (best is None or count < best[0]):
                best = count, rate
        return best

    def scale(self, batch, rate, count):
        """The noise scale after updates, from the expected gradient and noise."""
        errors = self.start
        for _ in range(count):
            errors = self.step(errors, batch, rate)
        a = self.variances
        return 1 + (a @ errors + self.noise) * a.sum() / (a * a * errors).sum()


def training(seed):
    """The noise scale of a training, and the true progress of a sample in each batch; None if it ends before step 100."""
    problem = Regression(seed)
    best = problem.best(BASELINE)
    if best is None or best[0] < STEPS[0]:
        return None
    at = max(step for step in STEPS if step <= best[0])
    reached = {batch: problem.best(batch) for batch in BATCHES}
    progress = {b: BASELINE * best[0] / (b * found[0]) for b, found in reached.items() if found is not None}
    return {"steps": best[0], "at": at, "scale": problem.scale(BASELINE, best[1], at), "progress": progress}


def run(part):
    """Run a part; returns its figures."""
    if part in OTHERS:
        return OTHERS[part].run()
    if part == "trainings":
        return [row for seed in range(1000, 1000 + PROBLEMS) if (row := training(seed)) is not None]
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


def print_trainings(rows):
    """Print how far the noise scale predicts the progress of a sample."""

    def predicted(scale, batch):
        return (scale + BASELINE) / (scale + batch)

    print(f"trainings: {len(rows)} of {PROBLEMS} regressions, which need {STEPS[0]} updates at least")
    print(f"  band: the scale divided by and times {SCALE_FACTOR}, and an error of the law of {LAW_ERROR:.0%}")
    print("  batch: true progress in the band, true/predicted: median, 5 %, 95 %")
    for batch in map(str, BATCHES):
        have = [row for row in rows if batch in row["progress"]]
        factors = 1 / SCALE_FACTOR, 1, SCALE_FACTOR
        low, middle, high = np.log([[predicted(factor * row["scale"], int(batch)) for row in have] for factor in factors])
        off = np.log([row["progress"][batch] for row in have]) - middle
        inside = np.mean(np.abs(off) <= np.hypot(np.where(off < 0, low - middle, high - middle), LAW_ERROR))
        ratios = np.exp(np.percentile(off, (50, 5, 95)))
        print(f"  {batch:>6} {inside:6.1%}  " + "  ".join(f"{ratio:.2f}" for ratio in ratios))


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
    if "trainings" in frozen:
        print_trainings(frozen["trainings"])
    for name, module in OTHERS.items():
        if name in frozen:
            module.print_figures(frozen[name])


if __name__ == "__main__":
    main()
