"""Races of trainings whose truth is known: which way a race is decided, and which way it should be.

The regressions of regressions.py that batches of 32 solve in 100 to `MOST_UPDATES` updates are trained by SGD on samples
drawn at random, with each batch size's best learning rate. A step of B samples takes 1 + B/H seconds, where H is drawn from
16 to 2,048. The races are those of a tune: trainings from one start for as long as batches of 32 need, eight points of
weights averaged over eight snapshots each, and the sequential interval of up to five pairs. The truth is how much sooner
the exact expected loss of the larger batches gets as low as both do.
"""

import math

import numpy as np
from regressions import BASELINE, SEEDS, STEPS, Regression

from autofit.records.race import Contestant, Heat
from autofit.records.trial import CURVE_POINTS, FitConfig, LossPoint
from autofit.tuning import race
from autofit.tuning.pairs import MOST_PAIRS

BATCHES, MOST_UPDATES, SNAPSHOTS = (32, 128, 512), 2000, 8
CLEAR = 1.2
FASTEST, SLOWEST = 16, 2048


def expected(problem, batch, rate, seconds, step_seconds):
    """The curve of the exact expected loss."""
    errors, points = problem.start, []
    for count in range(int(seconds / step_seconds) + 1):
        points.append(LossPoint(count * step_seconds, count, float(problem.variances @ errors)))
        errors = problem.step(errors, batch, rate)
    return points


def trained(problem, batch, rate, seconds, step_seconds, seed):
    """The curve of a training, of averaged weights."""
    draw, a = np.random.default_rng(seed), problem.variances
    errors = np.sqrt(problem.start)
    points, taken = [LossPoint(0.0, 0, float(a @ errors**2))], []
    for count in range(1, int(seconds / step_seconds) + 1):
        x = draw.standard_normal((batch, len(a))) * np.sqrt(a)
        residual = x @ errors - math.sqrt(problem.noise) * draw.standard_normal(batch)
        errors = errors - rate * (residual @ x) / batch
        at, done = count * step_seconds, (len(points) - 1 + (len(taken) + 1) / SNAPSHOTS) / CURVE_POINTS
        if at >= done * seconds:
            taken.append(errors)
            if at >= len(points) / CURVE_POINTS * seconds or len(taken) == SNAPSHOTS:
                points.append(LossPoint(at, count, float(a @ np.mean(taken, 0) ** 2)))
                taken = []
    return tuple(points)


def raced(seed):
    """The races of a regression against batches of 32; None if its training is too short or too long."""
    problem = Regression(seed)
    alone = problem.best(BASELINE)
    if alone is None or not STEPS[0] <= alone[0] <= MOST_UPDATES:
        return None
    best = {BASELINE: alone, **{batch: problem.best(batch) for batch in BATCHES if batch != BASELINE}}
    half = math.exp(np.random.default_rng(seed).uniform(math.log(FASTEST), math.log(SLOWEST)))
    step_seconds = {batch: 1 + batch / half for batch in BATCHES}
    seconds = best[BASELINE][0] * step_seconds[BASELINE]
    rows = []
    for number, batch in enumerate(BATCHES):
        if best[batch] is None or seconds < CURVE_POINTS * step_seconds[batch]:
            continue
        curves = [expected(problem, b, best[b][1], seconds, step_seconds[b]) for b in (BASELINE, batch)]
        ratios = []
        for pair in range(MOST_PAIRS):
            heats = []
            for b, of in ((BASELINE, 0), (batch, 1 + number)):
                points = trained(problem, b, best[b][1], seconds, step_seconds[b], [seed, pair, of])
                heats.append(Heat(FitConfig(b), pair, points))
            ratios.append(race.compared(Contestant(FitConfig(batch)), [heats]).ratio)
        rows.append({"batch": batch, "truth": math.exp(race.lead(*curves)), "ratios": ratios})
    return rows


def called(ratios):
    """The ratio of a race and which way it is decided, which may be before its last pair; a pair may have no ratio."""
    if None in ratios:
        return None, "undecided"
    for count in range(1, len(ratios) + 1):
        end = race.decided(Contestant(FitConfig()), np.log(ratios[:count]).tolist())
        if end.is_sooner or end.is_later:
            return end.ratio, "sooner" if end.is_sooner else "later"
    return end.ratio, "undecided"


def run():
    """The races of all regressions."""
    return [row for seed in SEEDS for row in raced(seed) or ()]


def print_figures(rows):
    """Print which way the races were decided."""
    print(f"exact: {len(rows)} races of {SNAPSHOTS * CURVE_POINTS} snapshots whose truth is known, pairs as in a tune")
    print("  truth                    races  sooner  later  undecided  ratio/truth: median, 5 %, 95 %")
    same = [row for row in rows if row["batch"] == BASELINE]
    others = [row for row in rows if row["batch"] != BASELINE]
    for name, of in (
        ("the same batch", same),
        (f"sooner by {CLEAR}x or more", [row for row in others if row["truth"] >= CLEAR]),
        ("between", [row for row in others if 1 / CLEAR < row["truth"] < CLEAR]),
        (f"later by {CLEAR}x or more", [row for row in others if row["truth"] <= 1 / CLEAR]),
    ):
        ends = [called(row["ratios"]) for row in of]
        counts = [sum(way == each for _, each in ends) for way in ("sooner", "later")]
        off = [ratio / row["truth"] for row, (ratio, _) in zip(of, ends, strict=True) if ratio]
        shares = "  ".join(f"{ratio:.2f}" for ratio in np.percentile(off, (50, 5, 95))) if off else ""
        print(f"  {name:24} {len(of):5}  {counts[0]:6}  {counts[1]:5}  {len(of) - sum(counts):9}  {shares}")
