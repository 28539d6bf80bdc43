"""Ways to search: what a user might do instead of autofit, and autofit's own, all with the same configs and limits."""

import itertools
import math
import warnings
from dataclasses import replace
from unittest import mock

import numpy as np
import optuna

from autofit.records.states import Outcome
from autofit.records.trial import KERAS_DEFAULTS, FitConfig, Trial
from autofit.search import failures, space
from autofit.search.frontier import Decision, Proposal, Reason
from autofit.search.rates import estimated_rates
from autofit.search.sampler import FrontierSampler
from autofit.storage import codec
from autofit.tuning.answers import MOST_CANDIDATES

optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
_CONFIRMING_RUNS = 2


class Peer:
    """A way to search; a search with fewer trials is the beginning of one with more."""

    def __init__(self, name):
        self.name = name

    def search(self, case, most, draw):
        """Yield (config, measurement) of at most `most` trials."""
        raise NotImplementedError

    def finish(self, case, tried, draw):
        """Choose a config after these trials; returns it (None if none ran) and the further trials that this took."""
        ran = [(c, m) for c, m in tried if m.outcome is Outcome.OK]
        return (max(ran, key=lambda t: t[1].samples_per_second)[0] if ran else None), []


class Optuna(Peer):
    """One of Optuna's samplers, with both constraints set; each knob is an index into its values."""

    def __init__(self, name, make):
        super().__init__(name)
        self._make = make

    def search(self, case, most, draw):
        study = optuna.create_study(direction="maximize", sampler=self._make(int(draw.integers(2**31))))
        knobs, legal = case.space.knobs(), list(case.space.configs())
        mapped = {}
        for _ in range(most):
            trial = study.ask()
            drawn = FitConfig(**{knob: v[trial.suggest_int(knob, 0, len(v) - 1)] for knob, v in knobs.items()})
            if drawn not in mapped:
                mapped[drawn] = _nearest(case.space.canonical(drawn), legal)
            measurement = case.run(mapped[drawn], draw)
            for name, value in codec.constraints_of(measurement, case.limits).items():
                trial.set_constraint(name, value)
            study.tell(trial, measurement.samples_per_second or 0.0)
            yield mapped[drawn], measurement


class Doubling(Peer):
    """Double the batch at Keras's default workers until it no longer fits, then bisect if `bisect`; chooses the largest."""

    def __init__(self, name, bisect=False):
        super().__init__(name)
        self._bisect = bisect

    def search(self, case, most, draw):
        sizes = _sizes(case)
        low, high, index = None, None, _index_of(sizes, 2)
        for _ in range(most):
            config = _at_defaults(case, sizes[index])
            measurement = case.run(config, draw)
            yield config, measurement
            if measurement.outcome is Outcome.OK:
                low = index
            else:
                high = index
            if high is None:
                if index == len(sizes) - 1:
                    return
                index = max(index + 1, _index_of(sizes, 2 * sizes[index]))
            elif not self._bisect or low is None or high - low <= 1:
                return
            else:
                index = (low + high) // 2

    def finish(self, case, tried, draw):
        ran = [c for c, m in tried if m.outcome is Outcome.OK]
        return max(ran, key=lambda c: c.batch_size, default=None), []


class Shrinking(Peer):
    """Halve the batch at Keras's default workers, from the largest, until one runs; chooses that."""

    def search(self, case, most, draw):
        sizes = _sizes(case)
        index = len(sizes) - 1
        for _ in range(most):
            config = _at_defaults(case, sizes[index])
            measurement = case.run(config, draw)
            yield config, measurement
            if measurement.outcome is Outcome.OK or index == 0:
                return
            index = min(index - 1, _index_of(sizes, sizes[index] / 2))


class Grid(Peer):
    """Every point of a coarse grid, in turn."""

    def search(self, case, most, draw):
        knobs = case.space.knobs()
        sizes = [b for b in knobs["batch_size"] if b >= 8 and b & (b - 1) == 0] if len(_sizes(case)) > 8 else _sizes(case)
        workers, queues = (
            ((1, 4, 16), (4, 20)) if len(knobs["workers"]) > 3 else (knobs["workers"], knobs["max_queue_size"])
        )
        wanted = itertools.product(sizes, workers, queues, (False, True))
        legal = set(case.space.configs())
        seen = dict.fromkeys(case.space.canonical(FitConfig(*values)) for values in wanted)
        for config in [c for c in seen if c in legal][:most]:
            yield config, case.run(config, draw)


class Autofit(Peer):
    """FrontierSampler and, if `races`, runs of what it chooses; `without` disables a part of the search."""

    def __init__(self, name, *, without=None, ceilings=True, races=True, tolerance=0.0):
        super().__init__(name)
        self._without, self._ceilings, self._races, self._tolerance = without, ceilings, races, tolerance

    def sampler(self, case):
        """The sampler for a case."""
        sampler = FrontierSampler(
            case.space,
            baseline=nearest(case.space, KERAS_DEFAULTS),
            description=case.description(),
            limits=case.limits,
            cores=case.cores,
            on_cpu=case.on_cpu,
        )
        if self._without is not None:
            self._without(sampler.search)
        return sampler

    def search(self, case, most, draw):
        self._last = self.sampler(case)
        study = optuna.create_study(direction="maximize", sampler=self._last)
        for _ in range(most):
            if self._last.stop_reason(study) is not None:
                return
            trial = study.ask(self._last.distributions)
            config = FitConfig.of(trial.params)
            measurement = self._seen(case.run(config, draw))
            for name, value in codec.frozen_trial(Trial(config, measurement), case.limits, {}).user_attrs.items():
                trial.set_user_attr(name, value)
            for name, value in codec.constraints_of(measurement, case.limits).items():
                trial.set_constraint(name, value)
            study.tell(trial, measurement.samples_per_second or 0.0)
            yield config, measurement

    def finish(self, case, tried, draw):
        """The likeliest best config; its confirming runs are readings, and it is chosen again, as in a tune."""
        trials, again, confirmed = [Trial(c, m) for c, m in tried], [], []
        while (chosen := self._likeliest(case, trials)) is not None and self._races:
            if chosen in confirmed or len(confirmed) == MOST_CANDIDATES:
                break
            confirmed.append(chosen)
            for _ in range(_CONFIRMING_RUNS):
                again.append((chosen, self._seen(case.run(chosen, draw))))
                trials.append(Trial(*again[-1]))
        return chosen, again

    def estimated(self, case, trials, configs=None):
        """The estimated rates of configs that ran; by default of those that may be chosen."""
        if configs is None:
            configs = list({trial.config: None for trial in failures.eligible(trials, case.limits)})
        return estimated_rates(trials, configs, self._last.context) if self._races else readings(trials, configs)

    def _likeliest(self, case, trials):
        rates = self.estimated(case, trials)
        return space.nearest(rates, self._tolerance, nearest(case.space, KERAS_DEFAULTS)) if rates else None

    def _seen(self, measurement):
        if self._ceilings or measurement.outcome is not Outcome.OK:
            return measurement
        return replace(measurement, compute_samples_per_second=None, input_samples_per_second=None)


def readings(trials, configs):
    """The highest reading of each config."""
    rates = {config: [t.samples_per_second for t in trials if t.config == config] for config in configs}
    return {config: max(of_one) for config, of_one in rates.items()}


def nearest(space, config):
    """The config of a space nearest to any config, knob by knob."""
    knobs = {
        knob: min(values, key=lambda value: abs(value - (getattr(config, knob) or 0)))
        for knob, values in space.knobs().items()
    }
    return space.canonical(FitConfig.of(knobs))


class Blind:
    """A surrogate of memory that predicts none."""

    def __init__(self, context, trials):
        pass

    def shares(self, configs):
        nothing = np.zeros(len(configs))
        return ((nothing, nothing),) * 2


def without_memory(proposer):
    """Predict no memory: only OOMs rule configs out."""
    outlook = proposer.outlook

    def blind(trials):
        with mock.patch("autofit.search.frontier.Memory", Blind):
            return outlook(trials)

    proposer.outlook = blind


def without_throughput(proposer):
    """Choose at random among what fits from the fourth trial on, and take the readings for the rates."""
    propose, draw = proposer.propose, np.random.default_rng(0)

    def at_random(trials):
        candidates = np.flatnonzero(proposer.outlook(trials)[0].safe)
        if len(trials) < 3 or not len(candidates):
            return propose(trials)
        return Decision(Proposal(proposer.configs[int(draw.choice(candidates))], Reason.PROBE))

    proposer.propose = at_random
    proposer.rates = lambda trials: {
        t.config: (math.log(t.measurement.samples_per_second), 0.04) for t in trials if t.measurement.outcome is Outcome.OK
    }


def peers():
    """All ways to search."""
    samplers = optuna.samplers
    return [
        Autofit("autofit"),
        Optuna("random", lambda seed: samplers.RandomSampler(seed=seed)),
        Optuna("QMC", lambda seed: samplers.QMCSampler(seed=seed, scramble=True)),
        Optuna("NSGA-II", lambda seed: samplers.NSGAIISampler(seed=seed, population_size=8)),
        Optuna("TPE", lambda seed: samplers.TPESampler(seed=seed)),
        Optuna("GP", lambda seed: samplers.GPSampler(seed=seed)),
        Doubling("doubling"),
        Doubling("doubling, bisecting", bisect=True),
        Shrinking("shrinking"),
        Grid("coarse grid"),
    ]


def ablations():
    """autofit with a part disabled, and with its usual tolerance."""
    return [
        Autofit("autofit"),
        Autofit("without memory model", without=without_memory),
        Autofit("without throughput model", without=without_throughput),
        Autofit("without the two ceilings", ceilings=False),
        Autofit("without the race", races=False),
        Autofit("with the 2 % tolerance", tolerance=0.02),
    ]


def _sizes(case):
    return list(case.space.knobs()["batch_size"])


def _index_of(sizes, wanted):
    """The index of the batch size nearest to the one wanted."""
    return min(range(len(sizes)), key=lambda i: abs(math.log2(sizes[i] / wanted)))


def _at_defaults(case, batch):
    default = {knob: getattr(KERAS_DEFAULTS, knob) for knob in case.space.knobs()}
    return _nearest(case.space.canonical(FitConfig.of({**default, "batch_size": batch})), list(case.space.configs()))


def _nearest(config, legal):
    """The legal config nearest to one: the batch first."""
    if config in legal:
        return config

    def distance(c):
        octaves = abs(math.log2(c.batch_size / config.batch_size))
        workers = abs(math.log2((c.workers or 1) / (config.workers or 1)))
        return (
            10 * octaves
            + workers
            + 2 * (c.use_multiprocessing != config.use_multiprocessing)
            + 0.1 * (c.max_queue_size != config.max_queue_size)
        )

    return min(legal, key=distance)
