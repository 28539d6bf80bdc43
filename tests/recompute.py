"""Recompute the stated figures of a result from its readings alone, without code of the engine."""

import itertools
import json
import math
import statistics

from scipy.stats import t

QUANTILE = 0.975  # of a 95 % interval


def rate_of(measurement, batch_size, steps_per_execution=1):
    """The rate and its relative half-width, from the ends of blocks of steps."""
    blocks = [(0.0, 0.0), *measurement["blocks"]]
    samples = batch_size * (steps_per_execution or 1)
    seconds, steps = blocks[-1]
    rates = [
        (done - before) * samples / (end - start)
        for (start, before), (end, done) in itertools.pairwise(blocks)
    ]
    if blocks[-1][0] - blocks[-2][0] < 0.15:  # the part after the last whole block
        rates = rates[:-1]
    width = math.inf
    if len(rates) > 1:
        width = (
            t.ppf(QUANTILE, len(rates) - 1)
            * statistics.stdev(rates)
            / math.sqrt(len(rates))
            / statistics.fmean(rates)
        )
    return steps * samples / seconds, width


def figures_of(path):
    """The figures of a saved result: (stated, recomputed) by name; runs whose rate was not timed are left out."""
    result = json.loads(path.read_text())
    found, by_config = {}, {}
    for run in (*result["trials"], *result["runs"]):
        measured, config = run["measurement"], run["config"]
        if measured["outcome"] != "ok":
            continue
        if run["stage"] == "beside":
            by_config.setdefault(json.dumps(config), []).append(measured["samples_per_second"])
        if not measured["blocks"]:
            continue
        rate, width = rate_of(measured, config["batch_size"], config["steps_per_execution"])
        name = f"{run['stage']} {config['batch_size']} {len(found)}"
        found[f"rate of {name}"] = (
            measured["steady_samples_per_second"] or measured["samples_per_second"],
            rate,
        )
        if measured["spread"] is not None and measured["epoch_gap_seconds"] is None:
            found[f"spread of {name}"] = (measured["spread"], width)
    choice = result["fastest"]
    confirming = by_config.get(
        json.dumps(choice["config"]), []
    )  # none if time was up: the rate is that of the search
    searched = [
        t["measurement"]["samples_per_second"]
        for t in result["trials"]
        if t["config"] == choice["config"]
    ]
    found["rate"] = (choice["samples_per_second"], statistics.median(confirming or searched[:1]))
    speedup = choice["speedup"]
    if choice["config"] != speedup["baseline"] and speedup["pairs"] > 1:
        pairs, stated = speedup["pairs"], math.log(speedup["ratio"])
        theirs, own = (
            list(map(math.log, rates))
            for rates in (by_config[json.dumps(speedup["baseline"])], confirming)
        )
        # a tune that was killed, or whose run failed, has begun its rounds anew
        starts = range(len(theirs) - pairs + 1)
        leads = {
            statistics.fmean(own[:pairs]) - statistics.fmean(theirs[start:][:pairs]): start
            for start in starts
        }
        lead = min(leads, key=lambda lead: abs(lead - stated))
        logs = own[:pairs], theirs[leads[lead] :][:pairs]
        squares = [statistics.variance(each) / pairs for each in logs]
        freedom = sum(squares) ** 2 * (pairs - 1) / sum(square**2 for square in squares)
        width = t.ppf(QUANTILE, freedom) * math.sqrt(sum(squares))
        for name, value in (("ratio", lead), ("low", lead - width), ("high", lead + width)):
            found[f"speedup {name}"] = (speedup[name], math.exp(value))
    peaks = [
        run["measurement"]["host_peak_bytes"]
        for run in (*result["trials"], *result["runs"])
        if run["config"] == choice["config"] and run["measurement"]["outcome"] == "ok"
    ]
    found["host peak"] = (choice["host_peak_bytes"], max(peaks))
    return found
