"""Recompute the stated figures of a result from its readings alone, without code of the engine."""

import itertools
import json
import math
import statistics

from scipy.stats import t

# of a 95 % interval
QUANTILE = 0.975


def rate_of(measurement, batch_size, steps_per_execution=1):
    """The rate and its relative half-width, from the ends of blocks of steps."""
    blocks = [(0.0, 0.0), *measurement["blocks"]]
    samples = batch_size * (steps_per_execution or 1)
    seconds, steps = blocks[-1]
    rates = [
        (done - before) * samples / (end - start)
        for (start, before), (end, done) in itertools.pairwise(blocks)
    ]
    # the part after the last whole block
    if blocks[-1][0] - blocks[-2][0] < 0.15:
        rates = rates[:-1]
    width = math.inf
    if len(rates) > 1:
        error = statistics.stdev(rates) / math.sqrt(len(rates))
        width = t.ppf(QUANTILE, len(rates) - 1) * error / statistics.fmean(rates)
    return steps * samples / seconds, width


def figures_of(path):
    """The figures of a saved result: (stated, recomputed) by name.

    Runs whose rate was not timed are left out.
    """
    result = json.loads(path.read_text())
    ran = [
        run
        for run in (*result["trials"], *result["runs"])
        if run["measurement"]["outcome"] == "ok"
    ]
    figures = {}
    for run in ran:
        if run["measurement"]["blocks"]:
            figures |= figures_of_run(
                run, f"{run['stage']} {run['config']['batch_size']} {len(figures)}"
            )
    choice = result["fastest"]
    confirming = rates_beside(ran, choice["config"])
    # without them, time was up: the rate is that of the search
    searched = [
        trial["measurement"]["samples_per_second"]
        for trial in result["trials"]
        if trial["config"] == choice["config"]
    ]
    rate = statistics.median(confirming or searched[:1])
    figures["rate"] = (choice["samples_per_second"], rate)
    speedup = choice["speedup"]
    if choice["config"] != speedup["baseline"] and speedup["pairs"] > 1:
        figures |= figures_of_speedup(
            speedup, rates_beside(ran, speedup["baseline"]), confirming
        )
    peaks = [
        run["measurement"]["host_peak_bytes"]
        for run in ran
        if run["config"] == choice["config"]
    ]
    figures["host peak"] = (choice["host_peak_bytes"], max(peaks))
    return figures


def figures_of_run(run, name):
    """The rate and the spread of a run."""
    measured = run["measurement"]
    config = run["config"]
    rate, width = rate_of(measured, config["batch_size"], config["steps_per_execution"])
    stated = measured["steady_samples_per_second"] or measured["samples_per_second"]
    figures = {f"rate of {name}": (stated, rate)}
    if measured["spread"] is not None and measured["epoch_gap_seconds"] is None:
        figures[f"spread of {name}"] = (measured["spread"], width)
    return figures


def rates_beside(runs, config):
    """The rates of a config in runs beside those of others, in their order."""
    return [
        run["measurement"]["samples_per_second"]
        for run in runs
        if run["stage"] == "beside" and run["config"] == config
    ]


def figures_of_speedup(speedup, rates_of_baseline, rates):
    """The ratio and its interval, by Welch's formula, from the logarithms of the rates."""
    pairs = speedup["pairs"]
    stated = math.log(speedup["ratio"])
    own = [math.log(rate) for rate in rates[:pairs]]
    baselines = [math.log(rate) for rate in rates_of_baseline]
    # a tune that was killed, or whose run failed, has begun its rounds anew
    rounds = [baselines[start:][:pairs] for start in range(len(baselines) - pairs + 1)]
    leads = [statistics.fmean(own) - statistics.fmean(each) for each in rounds]
    lead = min(leads, key=lambda lead: abs(lead - stated))
    logs = (own, rounds[leads.index(lead)])
    squares = [statistics.variance(each) / pairs for each in logs]
    freedom = sum(squares) ** 2 * (pairs - 1) / sum(square**2 for square in squares)
    width = t.ppf(QUANTILE, freedom) * math.sqrt(sum(squares))
    return {
        "speedup ratio": (speedup["ratio"], math.exp(lead)),
        "speedup low": (speedup["low"], math.exp(lead - width)),
        "speedup high": (speedup["high"], math.exp(lead + width)),
    }
