"""Compare the searches of two checkouts on the same cases with the same noise.

    python tests/benchmarks/replay.py --save new.json                         replay the search of this checkout
    python tests/benchmarks/replay.py --save old.json --tree PATH             replay that of another one on the same cases
    python tests/benchmarks/replay.py --save new.json --beside old.json ...   and print the paired differences

The noise of a reading follows from the case, the seed, the config and how often that config has run. Whatever two searches
do, a config's first run reads the same in both, so that their difference is that of the searches. `search.py` compares
autofit with other ways to search; this script is for changes of the search itself, whose effect is smaller than the noise.

The error is that of the estimated log rates of the configs that ran, in their stated deviations, as a root mean square: 1
if the deviations are right, less if they are too wide.

`--whole` runs whole tunes instead, with both answers and their confirming runs. It prints for each set the regret of the
answer at the own batch size (32 or `--own`) and that of the fastest, how many of the stated intervals contain the true
ratio to the baseline, and the seconds of the tune in those of 15 trials.

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
import tempfile
import time
import zlib
from dataclasses import replace
from pathlib import Path
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

RATES = ("samples_per_second", "compute_samples_per_second", "input_samples_per_second")
SETS = ("grid", "surf", "shapes", "calls", "tables", "host")


def cases(name):
    """The cases of a set; they and the loop are those of this checkout, autofit is that of `--tree`."""
    import curves
    import tables
    from surfaces import Stress, Surface

    if name == "grid":
        return [curves.Curve(curve) for curve in curves.CURVES]
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


class Whole:
    """A launcher that replays a case to a whole tune."""

    def __init__(self, case, common):
        self._case, self._common = case, common

    def run(self, spec):
        """A trial, or a description of the case."""
        from autofit.records.states import Phase

        yield Phase.TRAINING
        return self._case.description() if spec.role == "describe" else self._common.run(spec.config, None)

    def close(self):
        """Nothing is to be closed."""


def tune(case, seed, between, best, own):
    """A whole tune, with the answer at the own batch size; None if nothing runs there."""
    import peers

    from autofit.records.trial import KERAS_DEFAULTS
    from autofit.tuning import engine
    from autofit.tuning.problem import Problem
    from tests.fakes import MACHINE, make_request

    baseline = peers.nearest(case.space, replace(KERAS_DEFAULTS, batch_size=own))
    if not case.true_rate(baseline):
        return None
    common = Common(case, seed, between)
    machine = replace(MACHINE, cores=case.cores)

    def problem(request, description, similar):
        return Problem(request, description, case.space, baseline)

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(engine, "build_problem", problem):
        request = make_request(Path(folder), machine=machine, limits=case.limits, max_trials=12)
        record = engine.tune(request, Whole(case, common), lambda event: None)
    seconds = [sum(trial.measurement.seconds for trial in trials) for trials in (record.searched, record.runs)]
    best_own = case.best([config for config in case.space.configs() if config.batch_size == baseline.batch_size])
    own_answer, fastest, at_baseline = record.same_batch, record.fastest, case.true_rate(baseline)
    answers = [own_answer] if own_answer.config == fastest.config else [own_answer, fastest]
    shown = [(case.true_rate(a.config) / at_baseline, a.speedup) for a in answers if a.speedup.is_shown]
    return {
        "case": case.name,
        "seed": seed,
        "own": max(0.0, 1 - case.true_rate(own_answer.config) / best_own),
        "fastest": max(0.0, 1 - case.true_rate(fastest.config) / best),
        "best gain": best_own / at_baseline,
        "inside": [speedup.low <= ratio <= speedup.high for ratio, speedup in shown],
        "wrong": any(ratio <= 1 for ratio, _ in shown),
        "trials": len(record.searched),
        "runs": len(record.runs),
        "seconds": sum(seconds),
        "of a grid": sum(seconds) * len(record.searched) / (15 * seconds[0]),
    }


def whole_line(name, rows):
    """The figures of a set of whole tunes."""
    own, fastest, inside, share = ([row[key] for row in rows] for key in ("own", "fastest", "inside", "of a grid"))
    stated, wrong = [each for row in inside for each in row], sum(row["wrong"] for row in rows)
    trials, runs, seconds = (np.mean([row[key] for row in rows]) for key in ("trials", "runs", "seconds"))
    return (
        f"{name:7} {len(rows):4}  own {np.mean(own):6.2%} {np.median(own):6.2%} {np.quantile(own, 0.9):6.2%}  "
        f"fastest {np.mean(fastest):6.2%}  gains inside {sum(stated)} of {len(stated)}, wrong {wrong}  "
        f"{trials:4.1f} + {runs:.1f} runs  {seconds:5.0f} s, {np.median(share):.2f} of 15 trials, at most {max(share):.2f}"
    )


def errors(peer, case, trials):
    """The squared errors of the estimated log rates of the configs that ran, in their stated deviations."""
    configs = list({trial.config: None for trial in trials if trial.measurement.samples_per_second})
    from autofit.search.context import ConfigArrays
    from autofit.search.rates import Rates, ran

    context = peer._last.context
    predicted = Rates(ran(trials), context).predict(ConfigArrays(configs, context.cores))
    estimates = dict(zip(configs, zip(predicted.mean, predicted.deviation, strict=True), strict=True))
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
    parser.add_argument("--whole", action="store_true", help="run whole tunes, with both answers")
    parser.add_argument("--own", type=int, default=32, help="the own batch size of whole tunes (default: %(default)s)")
    parser.add_argument("--save", type=Path, required=True, help="file of the results; those of other sets stay in it")
    parser.add_argument("--beside", type=Path, help="results of another checkout, for the paired differences")
    arguments = parser.parse_args()
    sys.path[:0] = [arguments.tree]
    first, _, last = arguments.seeds.partition("-")
    results = json.loads(arguments.save.read_text()) if arguments.save.exists() else {}
    others = json.loads(arguments.beside.read_text()) if arguments.beside else {}
    if not arguments.whole:
        print("set        n   mean   median   90 %   OOMs   trials  seconds  error  difference in points")
    for name in arguments.sets.split(","):
        rows, started = [], time.monotonic()
        for case in cases(name):
            best = case.best(list(case.space.configs()))
            for seed in range(int(first), int(last or first) + 1):
                if arguments.whole:
                    rows += filter(None, [tune(case, seed, arguments.between, best, arguments.own)])
                else:
                    rows += [search(case, seed, arguments.most, arguments.between, best)]
        results[name] = rows
        arguments.save.write_text(json.dumps(results))
        if arguments.whole:
            print(f"{whole_line(name, rows)}  [{time.monotonic() - started:.0f} s]", flush=True)
            continue
        apart = difference(rows, others[name]) if name in others else ""
        print(f"{line(name, rows)}  {apart}  [{time.monotonic() - started:.0f} s]", flush=True)


if __name__ == "__main__":
    main()
