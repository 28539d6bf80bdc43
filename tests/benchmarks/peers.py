"""Ways to search: what a user might do instead of autofit, and autofit's own, all with the same
configs and limits.
"""

import math
import warnings

import optuna

from autofit.records.knobs import KERAS_DEFAULTS, FitConfig
from autofit.records.states import Outcome
from autofit.records.trial import Trial
from autofit.search import failures
from autofit.search.rates import rated_trials
from autofit.search.sampler import FrontierSampler
from autofit.storage import codec
from autofit.tuning.delivery import Beliefs

optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
_MOST_CHOICES = 3
_CONFIRMING_RUNS = 2


class Peer:
    """A way to search; a search with fewer trials is the beginning of one with more.

    `search(case, most, draw)` yields the config and the measurement of at most `most` trials.
    """

    def finish(self, case, tried, draw):
        """Choose a config after these trials.

        Returns it (None if none ran) and the further trials that this took.
        """
        ran = [(c, m) for c, m in tried if m.outcome is Outcome.OK]
        return (max(ran, key=lambda t: t[1].samples_per_second)[0] if ran else None), []


class Optuna(Peer):
    """One of Optuna's samplers, with both constraints set.

    Each knob is an index into its values.
    """

    def __init__(self, make):
        self._make = make

    def search(self, case, most, draw):
        study = optuna.create_study(
            direction="maximize", sampler=self._make(seed=int(draw.integers(2**31)))
        )
        knobs = case.space.knobs()
        legal = list(case.space.configs())
        mapped = {}
        for _ in range(most):
            trial = study.ask()
            drawn = FitConfig(
                **{
                    knob: v[trial.suggest_int(knob, 0, len(v) - 1)]
                    for knob, v in knobs.items()
                }
            )
            if drawn not in mapped:
                mapped[drawn] = _nearest(case.space.canonical(drawn), legal)
            measurement = case.run(mapped[drawn], draw)
            for name, value in codec.constraints_of(measurement, case.limits).items():
                trial.set_constraint(name, value)
            study.tell(trial, measurement.samples_per_second or 0.0)
            yield mapped[drawn], measurement


class Doubling(Peer):
    """Double the batch at Keras's default workers until it no longer fits, then bisect.

    Chooses the largest.
    """

    def search(self, case, most, draw):
        sizes = case.space.batch_size
        legal = list(case.space.configs())
        defaults = {knob: getattr(KERAS_DEFAULTS, knob) for knob in case.space.knobs()}
        low = None
        high = None
        index = _index_of(sizes, 2)
        for _ in range(most):
            config = _nearest(
                case.space.canonical(
                    FitConfig.of({**defaults, "batch_size": sizes[index]})
                ),
                legal,
            )
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
            elif low is None or high - low <= 1:
                return
            else:
                index = (low + high) // 2

    def finish(self, case, tried, draw):
        ran = [c for c, m in tried if m.outcome is Outcome.OK]
        return max(ran, key=lambda c: c.batch_size, default=None), []


class Autofit(Peer):
    """FrontierSampler, and runs of what it chooses."""

    def search(self, case, most, draw):
        self._last = FrontierSampler(
            case.space,
            baseline=nearest(case.space, KERAS_DEFAULTS),
            description=case.description(),
            limits=case.limits,
            cores=case.cores,
            on_cpu=case.on_cpu,
        )
        study = optuna.create_study(direction="maximize", sampler=self._last)
        for _ in range(most):
            if self._last.stop_reason(study) is not None:
                return
            trial = study.ask(self._last.distributions)
            config = FitConfig.of(trial.params)
            measurement = case.run(config, draw)
            for name, value in codec.frozen_trial(
                Trial(config, measurement), case.limits, {}
            ).user_attrs.items():
                trial.set_user_attr(name, value)
            for name, value in codec.constraints_of(measurement, case.limits).items():
                trial.set_constraint(name, value)
            study.tell(trial, measurement.samples_per_second or 0.0)
            yield config, measurement

    def finish(self, case, tried, draw):
        """The likeliest best config.

        Its confirming runs are readings, and it is chosen again, as in a tune.
        """
        trials = [Trial(c, m) for c, m in tried]
        again = []
        confirmed = []
        while (chosen := self._likeliest(case, trials)) is not None:
            if chosen in confirmed or len(confirmed) == _MOST_CHOICES:
                break
            confirmed.append(chosen)
            for _ in range(_CONFIRMING_RUNS):
                again.append((chosen, case.run(chosen, draw)))
                trials.append(Trial(*again[-1]))
        return chosen, again

    def _likeliest(self, case, trials):
        configs = list(
            {
                trial.config: None
                for trial in failures.eligible(trials, self._last.context)
            }
        )
        if not configs:
            return None
        beliefs = Beliefs(rated_trials(trials), configs, self._last.context)
        return beliefs.likeliest(
            configs, None, nearest(case.space, KERAS_DEFAULTS), 0.0
        )


def nearest(space, config):
    """The config of a space nearest to any config, knob by knob."""
    knobs = {
        knob: min(values, key=lambda value: abs(value - (getattr(config, knob) or 0)))
        for knob, values in space.knobs().items()
    }
    return space.canonical(FitConfig.of(knobs))


PEERS = {
    "autofit": Autofit(),
    "TPE": Optuna(optuna.samplers.TPESampler),
    "GP": Optuna(optuna.samplers.GPSampler),
    "doubling, bisecting": Doubling(),
}


def _index_of(sizes, wanted):
    return min(range(len(sizes)), key=lambda i: abs(math.log2(sizes[i] / wanted)))


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
