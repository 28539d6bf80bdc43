"""Compare the searches of two checkouts on the same cases with the same noise.

    python tests/benchmarks/replay.py --save new.json                         replay the search of this checkout
    python tests/benchmarks/replay.py --save old.json --tree PATH             replay that of another one
    python tests/benchmarks/replay.py --save new.json --beside old.json ...   and print the paired differences

The noise of a reading follows from the case, the seed, the config and how often that config has run. Whatever two searches
do, a config's first run reads the same in both, so that their difference is that of the searches. `search.py` compares
autofit with other ways to search; this script is for changes of the search itself, whose effect is smaller than the noise.

The error is that of the estimated log rates of the configs that ran, in their stated deviations, as a root mean square: 1
if the deviations are right, less if they are too wide.

`--between` adds the noise between runs: all rates of a run are multiplied by one random factor with this deviation, of
which the spread that the run reports says nothing.

Sets. grid: curves of real GPUs on the usual grid of batch sizes. surf, shapes, calls: simulated machines, those with the
shapes of real GPUs, and those with several steps in a call. tables, host: measured jobs; host is apart because its fastest
config is an outlier of a table that was read twice.
"""

import argparse
import collections
import json
import math
import os
import sys
import time
import zlib
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

RATES = ("samples_per_second", "compute_samples_per_second", "input_samples_per_second")
SETS = ("grid", "surf", "shapes", "calls", "tables", "host")


def cases(name):
    """The cases of a set, made by the checkout that comes first on `sys.path`."""
    import curves
    import tables
    from surfaces import Stress, Surface

    if name == "grid":
        return [curves.Curve(curve, interpolated=True) for curve in curves.CURVES]
    if name in ("tables", "host"):
        return [tables.Table(job) for job in tables.JOBS if (job == "host") == (name == "host")]
    numbers, stress = {
        "surf": (range(1000, 1030), None),
        "shapes": (range(1030, 1060), Stress(shapes=True)),
        "calls": (range(1060, 1075), Stress(calls=(1, 8, 32))),
    }[name]
    return [Surface(number, stress) for number in numbers]


class Common:
    """A case whose noise depends on nothing but the seed, the config and how often it has run."""

    def __init__(self, case, seed, between):
        self._case, self._seed, self._between, self._runs = case, seed, between, collections.Counter()

    def __getattr__(self, name):
        return getattr(self._case, name)

    def run(self, config, _):
        """The measurement of a trial; the caller's random numbers are not used."""
        run, self._runs[config] = self._runs[config], self._runs[config] + 1
        draw = np.random.default_rng([self._seed, zlib.crc32(f"{self._case.name} {config} {run}".encode())])
        measured = self._case.run(config, draw)
        factor = math.exp(self._between * draw.standard_normal()) if self._between else 1.0
        return replace(measured, **{name: factor * rate for name in RATES if (rate := getattr(measured, name))})


def search(case, seed, most, between, best):
    """One search, and the runs of what it chooses."""
    import peers

    from autofit.records.trial import Trial

    peer, common = peers.Autofit("autofit"), Common(case, seed, between)
    tried = list(peer.search(common, most, None))
    off = errors(peer, case, [Trial(config, measured) for config, measured in tried])
    chosen, again = peer.finish(common, tried, None)
    return {
        "case": case.name,
        "seed": seed,
        "regret": 1.0 if chosen is None else max(0.0, 1 - case.true_rate(chosen) / best),
        "ooms": sum(measured.outcome.is_oom for _, measured in tried),
        "trials": len(tried),
        "reruns": len(again),
        "seconds": sum(measured.seconds for _, measured in [*tried, *again]),
        "squares": off,
    }


def errors(peer, case, trials):
    """The squared errors of the estimated log rates of the configs that ran, in their stated deviations."""
    configs = list({trial.config: None for trial in trials if trial.measurement.samples_per_second})
    if hasattr(peer, "estimated"):
        from autofit.search.config_arrays import ConfigArrays
        from autofit.search.rates import Rates, ran

        context = peer._last.context
        predicted = Rates(ran(trials), context).predict(ConfigArrays.of(configs, context.cores))
        estimates = dict(zip(configs, zip(predicted.mean, predicted.deviation, strict=True), strict=True))
    else:
        estimates = peer._last.proposer.rates(trials)  # of another checkout
    rates = {config: case.true_rate(config) for config in estimates}
    return [((estimates[c][0] - math.log(rate)) / estimates[c][1]) ** 2 for c, rate in rates.items() if rate]


def line(name, rows):
    """The figures of a set."""
    regret = np.array([row["regret"] for row in rows])
    means = {key: np.mean([row[key] for row in rows]) for key in ("ooms", "trials", "reruns", "seconds")}
    error = math.sqrt(np.mean([square for row in rows for square in row["squares"]]))
    return (
        f"{name:7} {len(rows):4}  {regret.mean():6.2%} {np.median(regret):6.2%} {np.quantile(regret, 0.9):6.2%}  "
        f"{means['ooms']:5.2f}  {means['trials']:4.1f} + {means['reruns']:.1f}  {means['seconds']:5.0f}  {error:5.2f}"
    )


def difference(rows, others):
    """The mean paired difference of regret in points, its standard error, and the ends of its 95% interval."""
    before = {(row["case"], row["seed"]): row["regret"] for row in others}
    pairs = [row["regret"] - before[key] for row in rows if (key := (row["case"], row["seed"])) in before]
    mean, error = 100 * np.mean(pairs), 100 * np.std(pairs, ddof=1) / math.sqrt(len(pairs))
    return f"{mean:+6.2f} ± {error:.2f}  ({mean - 1.96 * error:+.2f} to {mean + 1.96 * error:+.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", default=str(Path(__file__).resolve().parents[2]), help="the checkout to replay")
    parser.add_argument("--sets", default=",".join(SETS), help="sets of cases (default: %(default)s)")
    parser.add_argument("--seeds", default="0", help="first seed, or first and last as 0-2 (default: %(default)s)")
    parser.add_argument("--most", type=int, default=8, help="trials of a search (default: %(default)s)")
    parser.add_argument("--between", type=float, default=0.0, help="deviation between runs of a config (default: none)")
    parser.add_argument("--save", type=Path, required=True, help="file of the results; those of other sets stay in it")
    parser.add_argument("--beside", type=Path, help="results of another checkout, for the paired differences")
    arguments = parser.parse_args()
    sys.path[:0] = [arguments.tree, f"{arguments.tree}/tests/benchmarks"]
    first, _, last = arguments.seeds.partition("-")
    results = json.loads(arguments.save.read_text()) if arguments.save.exists() else {}
    others = json.loads(arguments.beside.read_text()) if arguments.beside else {}
    print("set        n   mean   median   90 %   OOMs   trials  seconds  error  difference in points")
    for name in arguments.sets.split(","):
        rows, started = [], time.monotonic()
        for case in cases(name):
            best = case.best(list(case.space.configs()))
            for seed in range(int(first), int(last or first) + 1):
                rows += [search(case, seed, arguments.most, arguments.between, best)]
        results[name] = rows
        arguments.save.write_text(json.dumps(results))
        apart = difference(rows, others[name]) if name in others else ""
        print(f"{line(name, rows)}  {apart}  [{time.monotonic() - started:.0f} s]", flush=True)


if __name__ == "__main__":
    main()
