"""Races of real trainings: how often the same batch size twice is called sooner, and what a race of two sizes shows.

A network learns what another one says of 200,000 random rows, with noise; Keras on JAX and Adam. From one checkpoint,
trainings of `SECONDS` with as many seeds as there are `HEATS` run with batches of 32, and with larger ones at a learning
rate multiplied by the square root. They are paired at random, as the pairs of a race, and raced by its rules `DRAWS`
times.
"""

import itertools
import random
from dataclasses import asdict

import numpy as np
from generators import result_of

from autofit.records.race import Contestant, Heat
from autofit.records.states import Outcome, Role
from autofit.records.trial import FitConfig, HeatSpec, Limits, LossPoint, TrialSpec
from autofit.trial.launcher import ProcessLauncher
from autofit.tuning import race
from autofit.tuning.pairs import MOST_PAIRS
from autofit.workload.workload import Workload

BASELINE, BATCHES, HEATS, SECONDS, DRAWS = 32, (32, 128, 1024), 20, 4.0, 400


WIDTH, CLASSES, SAMPLES = 32, 10, {"training": 200_000, "held out": 4096}


def rows(part):
    """Inputs of 32 features, and the classes that a random network with noise gives them."""
    weights = np.random.default_rng(7)
    hidden, out = weights.normal(size=(WIDTH, 64)), weights.normal(size=(64, CLASSES))
    draw = np.random.default_rng(len(part))
    x = draw.normal(size=(SAMPLES[part], WIDTH)).astype("float32")
    logits = np.tanh(x @ hidden / 3) @ out + draw.gumbel(size=(SAMPLES[part], CLASSES))
    return x, logits.argmax(1).astype("int32")


def network():
    """A network of two layers, which cannot learn it by heart in the time of a race."""
    import keras

    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(256, "relu"), keras.layers.Dense(CLASSES)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def run():
    """Train all heats; returns their points by batch size, with keys that JSON takes."""
    workload = Workload(
        network,
        rows,
        data_kwargs={"part": "training"},
        validation=rows,
        validation_kwargs={"part": "held out"},
        backend="jax",
    )
    points = {batch: [] for batch in BATCHES}
    with ProcessLauncher(workload) as launcher:

        def heat(batch, spec):
            trial = TrialSpec(
                Role.HEAT, FitConfig(batch), Limits(None, 8 * 2**30), 90.0, measure_seconds=SECONDS, heat=spec
            )
            measurement = result_of(launcher.run(trial))
            assert measurement.outcome is Outcome.OK, measurement.evidence
            return measurement.losses

        updates = heat(BASELINE, HeatSpec(keeps="race.npz", baseline=BASELINE))[-1].updates
        for seed, batch in itertools.product(range(1, HEATS + 1), BATCHES):
            factor = (batch / BASELINE) ** 0.5
            spec = HeatSpec(seed, "race.npz", "", factor, None, updates, BASELINE, 2048, 8)
            points[batch].append([asdict(point) for point in heat(batch, spec)])
    return points


def raced(before, now):
    """The contestant of a race that goes on until it is decided."""
    pairs = []
    for number, (first, second) in enumerate(zip(before, now, strict=True), 1):
        pairs.append((Heat(FitConfig(1), number, first), Heat(FitConfig(2), number, second)))
        contestant = race.compared(Contestant(FitConfig(2)), pairs)
        if contestant.is_sooner or contestant.is_later:
            break
    return contestant


def print_figures(points):
    """Print how often each batch size is called sooner or later than batches of 32."""
    heats = {int(batch): [tuple(LossPoint(**p) for p in each) for each in of] for batch, of in points.items()}
    print(f"races: {HEATS} trainings of {SECONDS:.0f} s for each batch size, paired at random {DRAWS} times")
    draw = random.Random(0)
    for batch, of in heats.items():
        ends = []
        for _ in range(DRAWS):
            if batch == BASELINE:
                drawn = draw.sample(of, 2 * MOST_PAIRS)
                before, now = drawn[:MOST_PAIRS], drawn[MOST_PAIRS:]
            else:
                before, now = draw.sample(heats[BASELINE], MOST_PAIRS), draw.sample(of, MOST_PAIRS)
            ends.append(raced(before, now))
        sooner, later = (sum(getattr(end, name) for end in ends) / DRAWS for name in ("is_sooner", "is_later"))
        ratios = sorted(end.ratio for end in ends if end.ratio)
        low, middle, high = (ratios[round(share * (len(ratios) - 1))] for share in (0.1, 0.5, 0.9))
        print(
            f"  batch {batch:4} against {BASELINE}: sooner {sooner:6.1%}, later {later:6.1%}; ratio {middle:.2f} "
            f"({low:.2f} to {high:.2f} in 80 %)"
        )
