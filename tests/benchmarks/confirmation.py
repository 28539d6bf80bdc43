"""The sequential test that confirms a choice: how often it errs, how many pairs it takes, how often its interval is right.

    python tests/benchmarks/confirmation.py                 print the frozen table
    python tests/benchmarks/confirmation.py --run           simulate 4,000 confirmations a cell (five minutes)

Method. A run of a config reads its true rate times a lognormal factor; pairs run in turn (first the config, then the
baseline, then the baseline …), until the rule of `autofit/tuning/pairs.py` stops, with a tolerance of 2 %. Noise: the
standard deviation of one run's logarithm. Cases: normal noise in both; that of the config three times as large; heavy tails
(Student's t of three degrees of freedom, scaled); and a machine whose speed wanders (a random walk that steps by the noise
between runs, in addition to it).

faster: share of confirmations that call the config faster by more than the tolerance. It is an error where the true ratio
is 1.00 or 1.02 (the tolerance). pairs: their mean. covers: share of the stated intervals that contain the true ratio.
"""

import argparse
import json
import pathlib
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from autofit.records.states import Outcome
from autofit.records.trial import Evidence, FitConfig, Limits, Measurement, Trial
from autofit.tuning.pairs import Pair

FROZEN = pathlib.Path(__file__).with_suffix(".json")
TOLERANCE = 0.02
RATIOS = (1.0, 1 / (1 - TOLERANCE), 1.1, 1.25, 1.5, 2.0)
NOISES = (0.01, 0.03, 0.1, 0.2, 0.3)
CASES = ("normal", "config x 3", "heavy tails", "wandering")
CHOSEN, BASELINE = FitConfig(128, 2, 10, False), FitConfig(32, 1, 10, False)
LIMITS = Limits(None, 2**34)


def reading(rate):
    return Measurement(Outcome.OK, Evidence("finished"), 5.0, samples_per_second=rate)


class Machine:
    """Reads rates of runs, one after another."""

    def __init__(self, case, noise, ratio, draw):
        self.case, self.noise, self.ratio, self.draw = case, noise, ratio, draw
        self.wandered = 0.0

    def run(self, config):
        size = self.noise * (3 if self.case == "config x 3" and config == CHOSEN else 1)
        if self.case == "heavy tails":
            error = size * self.draw.standard_t(3) / np.sqrt(3)
        else:
            error = size * self.draw.standard_normal()
        if self.case == "wandering":
            self.wandered += self.noise * self.draw.standard_normal()
        return reading(float((self.ratio if config == CHOSEN else 1.0) * np.exp(error + self.wandered)))


def confirm(machine):
    """One confirmation, as `Confirmation` has it; returns whether the config won, the pairs, and its speedup."""
    pair = Pair(Trial(CHOSEN, reading(machine.ratio)), BASELINE)
    while pair.rounds < pair.most_rounds(TOLERANCE):
        configs = pair.next_round()
        pair.rounds += 1
        for config in configs:
            pair.runs.setdefault(config, []).append(machine.run(config))
    won = pair.recommendation(TOLERANCE, LIMITS, baseline_may_win=True).config == CHOSEN
    return won, pair.speedup()


def cell(task):
    """(faster, pairs, covers) of one case, noise and ratio."""
    case, noise, ratio, count, seed = task
    draw = np.random.default_rng(seed)
    done = [confirm(Machine(case, noise, ratio, draw)) for _ in range(count)]
    covered = [speedup.low <= ratio <= speedup.high for _, speedup in done]
    return [float(np.mean(values)) for values in ([won for won, _ in done], [s.pairs for _, s in done], covered)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="simulate, and freeze the table in confirmation.json")
    parser.add_argument("--count", type=int, default=4000, help="confirmations a cell (default: 4000)")
    arguments = parser.parse_args()
    if arguments.run:
        kinds = [(case, noise, ratio) for case in CASES for noise in NOISES for ratio in RATIOS]
        with ProcessPoolExecutor() as pool:
            cells = list(pool.map(cell, [(*kind, arguments.count, seed) for seed, kind in enumerate(kinds)], chunksize=4))
        rows = [[*kind, *values] for kind, values in zip(kinds, cells, strict=True)]
        FROZEN.write_text(json.dumps(rows).replace("], [", "],\n[") + "\n")
    rows = json.loads(FROZEN.read_text())
    print("true ratio          " + "".join(f"{ratio:^22.2f}" for ratio in RATIOS))
    print("case         noise  " + "  faster pairs covers " * len(RATIOS))
    for start in range(0, len(rows), len(RATIOS)):
        case, noise = rows[start][:2]
        line = [f"  {won:6.1%} {pairs:5.1f} {covers:6.1%} " for *_, won, pairs, covers in rows[start : start + len(RATIOS)]]
        print(f"{case:12} {noise:5.0%}  " + "".join(line).rstrip())
    wrong = max(row[3] for row in rows if row[2] < 1.05)
    print(f'\nwrong "faster", at most: {wrong:.1%}; intervals that cover: {min(row[5] for row in rows):.1%} or more')


if __name__ == "__main__":
    main()
