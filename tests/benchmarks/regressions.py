"""Linear regressions whose training by SGD is exact in expectation, and how well the noise scale predicts it.

They are drawn at random: 10, 50 or 200 inputs, variances that fall as a power of the index, starts and noise. SGD's
expected loss on them follows a recursion, so the samples to a target loss are exact. For each batch size, the learning
rate that needs the fewest is found on a grid of 14. The noise scale on the way of batches of 32 is exact too, at the last
of steps 100, 400 and 1,600 before the target. It predicts that a sample in a batch of B brings (φ + 32)/(φ + B) of one in
a batch of 32. Counted are the true values within the band that a tune's summary states.
"""

import numpy as np

from autofit.records.noise import STEPS
from autofit.report.choice import LAW_ERROR, SCALE_FACTOR

PROBLEMS, BASELINE, BATCHES = 100, 32, (128, 512, 2048)
SEEDS = range(1000, 1000 + PROBLEMS)
RATES, MOST_STEPS = 14, 40_000


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


def run():
    """The trainings that last long enough for a noise scale."""
    return [row for seed in SEEDS if (row := training(seed)) is not None]


def print_figures(rows):
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
