"""The rounds of confirming runs: how often they call a config faster that is not, how many they take, what intervals cover.

    python tests/benchmarks/confirmation.py                 print the frozen tables
    python tests/benchmarks/confirmation.py --run           simulate, and freeze the tables (three minutes on two cores)

A run of a config reads its true rate times a lognormal factor; `autofit/tuning/answers.py` decides what runs and when it
ends, with a tolerance of 2 %. Noise: the standard deviation of one run's logarithm. Cases: normal noise in all; that of all
but the baseline three times as large; heavy tails (Student's t of three degrees of freedom, scaled); and a machine whose
speed wanders (a random walk that steps by the noise between runs, in addition to it).

First table: one config is compared with the baseline. faster: share of comparisons that call it faster, an error where the
true ratio is 1.00 or 1.02 (the tolerance). rounds: their mean. covers: share of the stated intervals with the true ratio.

Second table: whole decisions. Twelve trials, four of them at the batch size of the baseline, read each config once; their
readings choose the candidates, and the confirming runs count as readings. All configs are as fast as the baseline, or 1.02
times as fast. anything: share of decisions that call any config faster. covers: share of the intervals stated for either
answer with the true ratio. runs: their mean.
"""

import argparse
import json
import pathlib
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from autofit.records.trial import FitConfig
from autofit.tuning.answers import Answers

FROZEN = pathlib.Path(__file__).with_suffix(".json")
TOLERANCE = 0.02
RATIOS = (1.0, 1 / (1 - TOLERANCE), 1.1, 1.25, 1.5, 2.0)
NOISES = (0.01, 0.03, 0.1, 0.2, 0.3)
BETWEEN = (0.05, 0.1, 0.15)
CASES = ("normal", "configs x 3", "heavy tails", "wandering")
CHOSEN, BASELINE = FitConfig(32, 2, 10, False), FitConfig(32, 1, 10, False)
OWN = tuple(FitConfig(32, workers, 10, False) for workers in (2, 4, 8))
OTHERS = tuple(
    FitConfig(batch, workers, 10, False) for batch in (64, 128, 256, 512) for workers in (1, 4)
)


class Machine:
    """Reads rates of runs, one after another."""

    def __init__(self, case, noise, ratio, draw):
        self.case, self.noise, self.ratio, self.draw = case, noise, ratio, draw
        self.wandered = 0.0

    def run(self, config):
        size = self.noise * (3 if self.case == "configs x 3" and config != BASELINE else 1)
        if self.case == "heavy tails":
            error = size * self.draw.standard_t(3) / np.sqrt(3)
        else:
            error = size * self.draw.standard_normal()
        if self.case == "wandering":
            self.wandered += self.noise * self.draw.standard_normal()
        return float((1.0 if config == BASELINE else self.ratio) * np.exp(error + self.wandered))


def decide(machine, answers, readings):
    """Run rounds until the answers are decided; returns the number of runs."""
    runs = 0
    while answers.propose(
        {config: float(np.exp(np.mean(np.log(rates)))) for config, rates in readings.items()}
    ):
        while answers.is_open:
            rates = {config: machine.run(config) for config in answers.next_round()}
            runs += len(rates)
            answers.add_round(rates)
            for config, rate in rates.items():
                readings.setdefault(config, []).append(rate)
    return runs


def compare(machine):
    """One comparison with the baseline: whether the config won, the rounds, and its speedup."""
    answers = Answers(BASELINE, TOLERANCE, None, baseline_may_win=True)
    answers.propose({CHOSEN: 2.0, BASELINE: 1.0})
    while answers.is_open:
        answers.add_round({config: machine.run(config) for config in answers.next_round()})
    return answers.fastest.answer == CHOSEN, answers.speedup(CHOSEN)


def cell(task):
    """(faster, rounds, covers) of one case, noise and ratio."""
    case, noise, ratio, count, seed = task
    draw = np.random.default_rng(seed)
    done = [compare(Machine(case, noise, ratio, draw)) for _ in range(count)]
    covered = [speedup.low <= ratio <= speedup.high for _, speedup in done]
    return [
        float(np.mean(values))
        for values in ([won for won, _ in done], [s.pairs for _, s in done], covered)
    ]


def whole(task):
    """(anything, covers, runs) of whole decisions in one case, noise and ratio."""
    case, noise, ratio, count, seed = task
    draw = np.random.default_rng([7, seed])
    won, covered, runs = [], [], []
    for _ in range(count):
        machine = Machine(case, noise, ratio, draw)
        answers = Answers(BASELINE, TOLERANCE, BASELINE.batch_size, baseline_may_win=True)
        readings = {config: [machine.run(config)] for config in (BASELINE, *OWN, *OTHERS)}
        runs.append(decide(machine, answers, readings))
        won.append((answers.same_batch.answer, answers.fastest.answer) != (BASELINE, BASELINE))
        compared = {*answers.same_batch.candidates[-1:], *answers.fastest.candidates[-1:]}
        stated = [answers.speedup(config) for config in compared]
        covered += [speedup.low <= ratio <= speedup.high for speedup in stated]
    return [float(np.mean(won)), float(np.mean(covered)), float(np.mean(runs))]


def simulate(count):
    kinds = [(case, noise, ratio) for case in CASES for noise in NOISES for ratio in RATIOS]
    wholes = [(case, noise, ratio) for case in CASES for noise in BETWEEN for ratio in RATIOS[:2]]
    with ProcessPoolExecutor() as pool:
        cells = pool.map(
            cell, [(*kind, count, seed) for seed, kind in enumerate(kinds)], chunksize=4
        )
        ones = [[*kind, *values] for kind, values in zip(kinds, cells, strict=True)]
        cells = pool.map(whole, [(*kind, count // 2, seed) for seed, kind in enumerate(wholes)])
        return {
            "one": ones,
            "whole": [[*kind, *values] for kind, values in zip(wholes, cells, strict=True)],
        }


def print_table(rows, ratios, form):
    """A line for each case and noise, with the figures of all ratios."""
    for start in range(0, len(rows), len(ratios)):
        case, noise = rows[start][:2]
        print(
            f"{case:12} {noise:5.0%}  "
            + "".join(form(*row[3:]) for row in rows[start : start + len(ratios)]).rstrip()
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--run", action="store_true", help="simulate, and freeze the tables in confirmation.json"
    )
    parser.add_argument(
        "--count", type=int, default=300, help="decisions a cell (default: %(default)s)"
    )
    arguments = parser.parse_args()
    if arguments.run:
        FROZEN.write_text(json.dumps(simulate(arguments.count)).replace("], [", "],\n[") + "\n")
    tables = json.loads(FROZEN.read_text())
    rows = tables["one"]
    print(
        "of 2026-11-28, without a limit of time: tunes with max_seconds often end after fewer rounds"
    )
    print("true ratio          " + "".join(f"{ratio:^22.2f}" for ratio in RATIOS))
    print("case         noise  " + "  faster rounds covers" * len(RATIOS))
    print_table(rows, RATIOS, "  {:6.1%} {:5.1f} {:6.1%} ".format)
    wrong = max(row[3] for row in rows if row[2] < 1.05)
    print(
        f'\nwrong "faster", at most: {wrong:.1%}; intervals that cover: {min(row[5] for row in rows):.1%} or more'
    )
    print("\nwhole decisions     " + "".join(f"{ratio:^24.2f}" for ratio in RATIOS[:2]))
    print("case         noise  " + "  anything  covers  runs " * 2)
    print_table(tables["whole"], RATIOS[:2], "  {:8.1%}  {:6.1%}  {:4.1f} ".format)
    anything = [row[3] for row in tables["whole"]]
    print(
        f'\nwrong "faster" of anything, in the mean: {np.mean(anything):.1%}; at most: {max(anything):.1%}'
    )


if __name__ == "__main__":
    main()
