"""The value of a warm start: trials, regret and OOMs with and without an earlier tune, on the same surfaces and noise.

    python tests/benchmarks/warm.py             print the frozen table (the same as warm.txt)
    python tests/benchmarks/warm.py --run       a fresh run, frozen in warm.txt (some minutes)

Cases. Random surfaces (`surfaces.py`): the search was developed on the seeds 0 to 14; the results are of 1000 to 1029, with
two seeds each. The earlier tune is a whole search on the same surface, changed as the line says; the later one gets its
finished trials.

Neighbour: another model on the same data, as in a sweep over a model's width, with 2.5 times the step time and memory a
sample of the earlier one, or a 2.5th. A warm start from it runs out of memory, and the throughput model alone saves no
trial (5.9 and 7.0 trials instead of 6.7, on the development seeds). Neighbours are therefore not used for a warm start.
"""

import argparse
import itertools
import os
import pathlib
from concurrent.futures import ProcessPoolExecutor

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import peers
from surfaces import Surface

from autofit.records.states import Outcome
from autofit.records.trial import KERAS_DEFAULTS, Trial
from autofit.search.sampler import FrontierSampler

HERE = pathlib.Path(__file__).parent
FIRST_SURFACE, SURFACES, SEEDS = 1000, 30, 2
MOST_TRIALS = 12


def with_limits(surface, factor):
    """Multiply the device's memory."""
    surface.device *= factor
    surface.usable_device *= factor


def with_versions(surface, factor):
    """Multiply the time of a step, and less that of the input, as another version of the libraries may."""
    surface.sample_seconds *= factor
    surface.making_seconds *= factor**0.5


def with_width(surface, factor):
    """Multiply the step time and the memory a sample: another model on the same data."""
    surface.sample_seconds *= factor
    surface.held_per_sample *= factor


CHANGES = {
    "half the limit": (with_limits, 0.5),
    "twice the limit": (with_limits, 2.0),
    "1.3 times as fast": (with_versions, 1 / 1.3),
    "0.7 times as fast": (with_versions, 1 / 0.7),
    "neighbour, half the width": (with_width, 0.4),
    "neighbour, twice the width": (with_width, 2.5),
}


class Warm(peers.Autofit):
    """autofit with a warm start."""

    def __init__(self, warm_start):
        super().__init__("warm")
        self._warm_start = warm_start

    def sampler(self, case):
        """See `peers.Autofit`."""
        return FrontierSampler(
            case.space,
            baseline=peers.nearest(case.space, KERAS_DEFAULTS),
            description=case.description(),
            limits=case.limits,
            cores=case.cores,
            warm_start=self._warm_start,
        )


def search(task):
    """(trials, regret, OOMs) cold and warm."""
    change, number, seed = task
    how, factor = CHANGES[change]
    before, now = Surface(number), Surface(number)
    how(before, 1 / factor)
    draw = np.random.default_rng([seed, number, 1])
    warm_start = [
        Trial(c, m) for c, m in peers.Autofit("autofit").search(before, MOST_TRIALS, draw) if m.outcome is Outcome.OK
    ]
    rows = []
    for peer in (peers.Autofit("cold"), Warm(warm_start)):
        draw = np.random.default_rng([seed, number, 2])
        tried = list(peer.search(now, MOST_TRIALS, draw))
        chosen, again = peer.finish(now, tried, draw)
        regret = 1.0 if chosen is None else max(0.0, 1 - now.true_rate(chosen) / now.best(list(now.space.configs())))
        rows.append((len(tried), regret, sum(m.outcome.is_oom for _, m in [*tried, *again])))
    return change, rows


def main():
    """Run or print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="run everything and freeze it in warm.txt")
    parser.add_argument("--first", type=int, default=FIRST_SURFACE, help="first surface (default: %(default)s)")
    parser.add_argument("--surfaces", type=int, default=SURFACES, help="how many (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="default: all cores")
    arguments = parser.parse_args()
    if arguments.run:
        numbers = range(arguments.first, arguments.first + arguments.surfaces)
        tasks = list(itertools.product(CHANGES, numbers, range(SEEDS)))
        with ProcessPoolExecutor(arguments.processes) as pool:
            results = list(pool.map(search, tasks, chunksize=4))
        count = arguments.surfaces * SEEDS
        title = f"cold > warm, {count} searches a line"
        lines = [f"{title:30} {'trials':>13} {'regret, p50':>15} {'p90':>15} {'OOMs':>13}"]
        for change in CHANGES:
            rows = np.array([row for name, row in results if name == change])  # (searches, cold or warm, 3)
            trials, ooms = rows[:, :, 0].mean(0), rows[:, :, 2].mean(0)
            middle, high = (np.percentile(rows[:, :, 1], q, axis=0) for q in (50, 90))
            lines.append(
                f"{change:30} {trials[0]:5.1f} > {trials[1]:5.1f} {middle[0]:6.1%} > {middle[1]:6.1%} "
                f"{high[0]:6.1%} > {high[1]:6.1%} {ooms[0]:5.2f} > {ooms[1]:5.2f}"
            )
        text = "\n".join(lines) + "\n"
        if arguments.first == FIRST_SURFACE:
            (HERE / "warm.txt").write_text(text)
        print(text, end="")
    else:
        print((HERE / "warm.txt").read_text(), end="")


if __name__ == "__main__":
    main()
