"""Jobs of known truth: de-noised rates of measured jobs, stretched to a given gain.

A table's reading is the sum, in logarithms, of the effect of its batch size, that of its kind of
workers and queue, an interaction and the noise of a run. The first two are fitted by least squares.
The interaction is what is left, shrunken by the share of its variance that repeated readings do not
explain (empirical Bayes). The public programs have too few readings to tell an interaction: theirs
is 0, and those without workers follow a parabola over the octaves of the batch size.
"""

import json
import math
import statistics
from dataclasses import dataclass, replace

import numpy as np
import public_tunes
from tables import JOBS, Table

from autofit.records.description import Description
from autofit.records.knobs import KERAS_DEFAULTS, FitConfig
from autofit.records.trial import Limits
from autofit.search.space import SearchSpace, nearest

GIB = 2**30
NATURAL = "natural"
GAINS = (0.05, 0.1, 0.2, 0.5)
BEST, NEAR, FLAT = NOTHING = ("baseline best", "others near", "flat")
LANDSCAPES = (NATURAL, *GAINS, *NOTHING)
NEAR_LOSS = 0.05  # of the slowest config, where the others are near
LEAST_LEAD = (
    0.01  # in log rate, of the best over a baseline: less is not stretched to a gain
)
_STARTING_SECONDS = (
    0.5  # by which a trial is shorter than a plain fit of the coarse grid
)
_STEP_LEAD = (
    0.05  # in log rate, of the step alone over the fit of a public program (assumed)
)
_INPUT_LEADS = {
    True: 0.15,
    False: 1.5,
}  # of the input alone, with workers and of arrays (assumed)


@dataclass(frozen=True)
class Job:
    """A job whose true rates are known.

    `rates` are the logarithms of the rates of fit, step alone and input alone, by config; `peaks`
    the bytes on device and host. A trial takes `seconds`.
    """

    name: str
    space: SearchSpace
    description: Description
    limits: Limits
    baseline: FitConfig
    seconds: float
    rates: dict
    peaks: dict

    def fits(self, config):
        device, host = self.peaks[config]
        return self.limits.allow(device or 0, host)

    def rate(self, config):
        """Samples per second; 0 where it does not fit."""
        return math.exp(self.rates[config][0]) if self.fits(config) else 0.0

    def best(self, batch_size=None):
        """The highest rate, of all configs or of those with a batch size."""
        among = (c for c in self.rates if batch_size in (None, c.batch_size))
        return max(map(self.rate, among))

    def shaped(self, landscape):
        """The same job with another gain over its baseline, which then has one thread."""
        if landscape == NATURAL:
            return self
        fitting = [config for config in self.rates if self.fits(config)]
        plain = [config for config in fitting if not config.has_queue]
        fit = {config: self.rates[config][0] for config in fitting}
        if landscape == FLAT:
            baseline = min(plain, key=lambda c: abs(math.log2(c.batch_size / 32)))
            level = fit[baseline]
            flat = (level, level + 0.3, level + 0.3)
            return replace(
                self, baseline=baseline, rates=dict.fromkeys(self.rates, flat)
            )
        if landscape in NOTHING:
            baseline = max(plain, key=fit.get)
            return replace(
                self, baseline=baseline, rates=self._below(baseline, fit, landscape)
            )
        wanted = math.log1p(landscape)
        best = max(fit.values())
        leads = {config: best - fit[config] for config in plain}
        baseline = min(plain, key=lambda c: abs(leads[c] - wanted))
        if leads[baseline] < LEAST_LEAD:
            baseline = max(plain, key=leads.get)
        factor = wanted / max(leads[baseline], LEAST_LEAD)
        return replace(
            self, baseline=baseline, rates=self._stretched(fit[baseline], factor)
        )

    def _below(self, baseline, fit, landscape):
        """The rates with the baseline's as the highest; near it, if so asked."""
        top = fit[baseline]
        capped = {
            config: (
                min(of_fit, top),
                max(step, min(of_fit, top)),
                max(made, min(of_fit, top)),
            )
            for config, (of_fit, step, made) in self.rates.items()
        }
        if landscape == BEST:
            return capped
        most = max(top - min(rate, top) for rate in fit.values())
        factor = min(1.0, -math.log1p(-NEAR_LOSS) / max(most, LEAST_LEAD))
        return replace(self, rates=capped)._stretched(top, factor)

    def _stretched(self, level, factor):
        """The rates with each lead over a level times a factor."""
        return {
            config: tuple(level + factor * (rate - level) for rate in rates)
            for config, rates in self.rates.items()
        }


def jobs():
    """The eight tables and the five public programs, by name."""
    made = [*map(_of_table, JOBS), *map(_of_program, public_tunes.SPACES)]
    return {job.name: job for job in made}


def _of_table(name):
    table = Table(name)
    readings = table.readings
    fields = (
        "samples_per_second",
        "compute_samples_per_second",
        "input_samples_per_second",
    )
    fit, step, made = (_smooth(readings, field) for field in fields)
    return Job(
        name=f"table {name}",
        space=table.space,
        description=table.description(),
        limits=table.limits,
        baseline=_nearest_to_defaults(table.space),
        seconds=statistics.fmean(m.seconds for ran in readings.values() for m in ran),
        rates={
            c: (fit[c], max(fit[c], step[c]), max(fit[c], made[c])) for c in readings
        },
        peaks={config: _peaks(ran) for config, ran in readings.items()},
    )


def _smooth(readings, field):
    """The logarithms of a rate by config: both effects, and the shrunken interaction."""
    logs = [[math.log(getattr(m, field)) for m in ran] for ran in readings.values()]
    means = np.array([statistics.fmean(of_config) for of_config in logs])
    effects = _effects(readings)
    fitted = effects @ np.linalg.lstsq(effects, means, rcond=None)[0]
    left = means - fitted
    of_mean = statistics.fmean(
        statistics.variance(of_config) / len(of_config) for of_config in logs
    )
    variance = left @ left / (len(means) - effects.shape[1])
    share = max(0.0, 1 - of_mean / variance)
    return dict(zip(readings, fitted + share * left, strict=True))


def _effects(configs):
    """A column for each batch size and each kind of workers, and one for all."""
    kinds = [(c.workers, c.max_queue_size, c.use_multiprocessing) for c in configs]
    sizes = [c.batch_size for c in configs]
    columns = [[size == one for size in sizes] for one in sorted(set(sizes))[1:]]
    columns += [[kind == one for kind in kinds] for one in sorted(set(kinds))[1:]]
    return np.array([[True] * len(sizes), *columns], float).T


def _peaks(ran):
    device = statistics.fmean(m.device_peak_bytes or 0 for m in ran)
    return int(device) or None, int(statistics.fmean(m.host_peak_bytes for m in ran))


def _nearest_to_defaults(space):
    """The config of a space nearest to Keras's defaults."""
    rates = dict.fromkeys(space.configs(), 1.0)
    return nearest(rates, 0.0, KERAS_DEFAULTS)


def _of_program(name):
    frozen = json.loads(public_tunes.FROZEN.read_text())["jobs"][name]
    sizes, _, knobs = public_tunes.SPACES[name]
    configs = {str(config): config for config in public_tunes.configs_of(name)}
    logs = {
        config: [math.log(frozen["grid"][text])] for text, config in configs.items()
    }
    for text, again in frozen["rates"].items():
        logs[configs[text]] += map(math.log, again)
    effects = _effects(logs) if knobs else _parabola(logs)
    means = np.array([statistics.fmean(of_config) for of_config in logs.values()])
    weights = np.sqrt([len(of_config) for of_config in logs.values()])
    weighted = effects * weights[:, None]
    fit = effects @ np.linalg.lstsq(weighted, means * weights, rcond=None)[0]
    values = {"batch_size": tuple(sorted(sizes)), **knobs}
    description = Description(
        input_kind="PyDataset" if knobs else "arrays",
        knobs={knob: knob for knob in values},
        sample_count=64_000,
        sample_bytes=10_000,
        parameter_count=100_000,
        parameter_bytes=400_000,
        optimizer_bytes=800_000,
        jit_compile=False,
        fingerprint=name,
        process_bytes=GIB // 2,
    )
    rates = {
        config: (
            float(rate),
            float(rate) + _STEP_LEAD,
            float(rate) + _INPUT_LEADS[bool(knobs)],
        )
        for config, rate in zip(logs, fit, strict=True)
    }
    return Job(
        name=f"public {name}",
        space=SearchSpace(**values),
        description=description,
        limits=Limits(None, 16 * GIB),
        baseline=public_tunes.own_config(name),
        seconds=frozen["coarse_seconds"] / public_tunes.COARSE_GRID - _STARTING_SECONDS,
        rates=rates,
        peaks=dict.fromkeys(rates, (None, GIB // 2)),
    )


def _parabola(configs):
    octaves = np.log2([config.batch_size for config in configs])
    return np.stack([octaves**0, octaves, octaves**2], axis=1)
