"""Decide what to try next, given all trials so far. This module has no side effects.

    trials ──> ruled out by a failure, memory, distance ──> Feasible ──┐
           └─> Rates: lead over the best config, and its deviation ────┴──> Decision

There is one rule. A run of each config is worth what it is expected to add to the rate of what is
delivered (`value.py`), times the probability that it fits, over the expected time of the run
(`seconds.py`), to which compiling and an out-of-memory error add. The config that is worth most is
run, or the cheapest of those that are worth about as much; the search stops if none is worth a run.
With `repeats`, configs that have run compete, too. The reason of the proposal follows from the
rule: a promise, or a risk if the upper bound of the config's device memory exceeds the limit.

The first trial cannot be chosen so: it is the baseline, or a smaller batch if nothing is known of
its memory, or the best config according to an earlier tune of the same workload.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from autofit.records import confidence
from autofit.records.knobs import AUTOTUNE, KNOBS, FitConfig, value_in_words
from autofit.records.states import Outcome, Text
from autofit.records.trial import Trial
from autofit.search.context import (
    ConfigArrays,
    Indices,
    Mask,
    Matrix,
    SearchContext,
    Vector,
)
from autofit.search.failures import eligible, ruled_out
from autofit.search.memory import Memory, finished_trials
from autofit.search.rates import Prediction, Rates, rated_trials
from autofit.search.seconds import relative_seconds
from autofit.search.space import SearchSpace, cost, distance
from autofit.search.value import worth

EXHAUSTED = (
    "every other configuration has been tried, is known or predicted not to fit, "
    "or would take seconds for a call"
)
TOO_SLOW = f"{EXHAUSTED}, or resembles one that was too slow or hung"
NONE_FASTER = (
    "no other configuration is predicted to be faster; max_seconds leaves few trials"
)
# standard deviations up to the upper bound of a memory: an OOM trial costs only half a minute
_RISK_DEVIATIONS = 2.0
# share of each limit that must stay free according to that bound
_HEADROOM = 0.03
# after these, nothing larger than the finished trials is tried
_MOST_OOMS = 2
# memory is not trusted beyond this multiple of the largest batch size and the most processes that
# ran
_LEAP_FACTOR = 8
# first batch size, in samples, if nothing is known about its memory
_SAFE_BATCH = 8
# a first batch size that does not fit is divided by this: an OOM costs as much as ten good trials
_RETREAT_FACTOR = 4
# chance to fit of a batch that is called possible
_LIKELY = 0.5
# of the tolerance: a smaller expected improvement is not worth a trial
_WORTHWHILE_SHARE = 0.15
# what a gain at the own batch size counts, beside the gain of the fastest
_OWN_SHARE = 0.5
# values that differ by less than this share count as equal: the cheaper config is taken
_TIE_RATIO = 0.1
# longest call of several steps that is tried: beside it, the overhead of milliseconds is small, and
# a trial takes 7 calls
_LONGEST_CALL_SECONDS = 1.0
# relative gain: a config with a smaller predicted gain is tried because its rate is uncertain
_CLEAR_GAIN = 0.005
# least deviation and chance, so that there is a quotient and a logarithm
_LEAST = 1e-9


class Reason(Text):
    """Why a config is proposed, in words."""

    WARM_START = "predicted to be the best by an earlier tune of this workload"
    PROBE = "to learn how time and memory grow"
    LARGER = "the largest batch that is certain to fit"
    LIKELY = "the largest batch that is likely to fit"
    AGAIN = "once more, because its rate decides what is the fastest"
    SAMPLED = "proposed by the sampler"
    PROMISE = "a predicted gain"  # both are shown with the gain
    RISK = "worth the risk of running out of memory"


@dataclass(frozen=True)
class Proposal:
    """A config to try, the reason, and the expected result.

    `gain` is the expected relative gain over the best config so far, `most_gain` the upper end of
    its interval, and `change` the difference from that config in words. `device_share` and
    `host_share` are the upper bounds of both memories as shares of their limits; `likely_share` is
    the expected share of the one with the higher bound.
    """

    config: FitConfig
    reason: Reason
    device_share: float
    host_share: float
    likely_share: float
    gain: float = 0.0
    most_gain: float = 0.0
    change: str = ""

    def __str__(self) -> str:
        reason = str(self.reason)
        if self.reason in (Reason.PROMISE, Reason.RISK):
            reason = f"predicted {_percent(self.gain)}"
            if self.gain < _CLEAR_GAIN:
                interval = confidence.interval_in_words()
                reason += f", but uncertain: the {interval} reaches {_percent(self.most_gain)}"
            if self.reason is Reason.RISK:
                reason += f", {self.reason}"
        share = max(self.device_share, self.host_share)
        if share:
            name = "host" if self.host_share > self.device_share else "device"
            likely = f"{self.likely_share:.0%} ± {share - self.likely_share:.0%}"
            reason += f", {name} memory {likely} of the limit"
        return f"{self.change}: {reason}" if self.change else reason


class Decision(NamedTuple):
    """The next step of a search: try the proposal, or stop.

    With a `stop_reason`, the proposal is the best remaining config, which is not worth a trial, or
    None if none remains.
    """

    proposal: Proposal | None = None
    stop_reason: str | None = None


class Feasible(NamedTuple):
    """What may be tried, with an entry for each config.

    `possible` configs have not run, no failure rules them out, they are near the finished trials,
    and the upper bound of their host memory is within the limit. For `safe` ones, that of their
    device memory is as well; `chance` is the probability that this fits. `shares`, of shape
    (3, configs), are those of a `Proposal`: of the device, of the host, and the likely one.
    """

    untried: Mask
    possible: Mask
    safe: Mask
    chance: Vector
    shares: Matrix


_Outlook = tuple[Feasible, Prediction | None]


class FrontierSearch:
    """Proposes configs from a space for one workload; `baseline` is the user's present config."""

    def __init__(
        self,
        space: SearchSpace,
        baseline: FitConfig,
        context: SearchContext,
        *,
        own_batch: int | None = None,
        repeats: bool = False,
    ) -> None:
        self.configs = tuple(sorted(space.configs(), key=cost))
        self._index = {config: index for index, config in enumerate(self.configs)}
        self._arrays = ConfigArrays(self.configs, context.cores)
        self._baseline = baseline
        self._context = context
        self._own_batch = own_batch
        self._repeats = repeats
        # the trials that were asked about last, and their outlook
        self._last: tuple[tuple[Trial, ...], _Outlook] | None = None

    def propose(self, trials: Sequence[Trial], *, is_short: bool = False) -> Decision:
        """Propose the next run; if time `is_short`, no new config that is predicted slower."""
        rated = rated_trials(trials)
        feasible, rates = self.outlook(trials)
        if rates is None:
            return self._probe(trials, feasible)
        if not feasible.possible.any() and not (self._repeats and rated):
            is_slow = any(
                trial.measurement.outcome is Outcome.TIMEOUT for trial in trials
            )
            return Decision(stop_reason=TOO_SLOW if is_slow else EXHAUSTED)
        if rated:
            return self._best(trials, feasible, rates, is_short=is_short)
        if feasible.safe.any():
            return self._warm(feasible, rates)
        return self._probe(trials, feasible)

    def propose_near(self, wanted: FitConfig, trials: Sequence[Trial]) -> Decision:
        """Propose the config nearest to a wanted one among those predicted to fit.

        If there are none, do as `propose`.
        """
        feasible, _ = self.outlook(trials)
        if not feasible.safe.any():
            return self.propose(trials)
        chosen = self._nearest(wanted, feasible.safe)
        change = f"nearest to {wanted}, which was tried or may not fit"
        if self.configs[chosen] == wanted:
            change = ""
        return self._proposed(chosen, Reason.SAMPLED, feasible, change=change)

    def snap(self, config: FitConfig) -> FitConfig:
        """Return the config of the space that is nearest to any config."""
        return self.configs[self._nearest(config)]

    def outlook(self, trials: Sequence[Trial]) -> _Outlook:
        """Return what may be tried after these trials, and the predicted rates.

        There are no rates if nothing has run.
        """
        trials = tuple(trials)
        # Optuna asks twice: whether to stop after a trial, and then for the next one
        if self._last is None or self._last[0] != trials:
            self._last = trials, self._look(trials)
        return self._last[1]

    def _look(self, trials: tuple[Trial, ...]) -> _Outlook:
        # takes a quarter of a second; a stored result needs it not
        from scipy.special import ndtr

        arrays = self._arrays
        context = self._context
        (device, device_off), (host, host_off) = Memory(context, trials).shares(arrays)
        upper = device + _RISK_DEVIATIONS * device_off
        host_upper = host + _RISK_DEVIATIONS * host_off
        untried = ~ruled_out(arrays, trials, context, [self._baseline])
        untried[[self._index[t.config] for t in trials if t.config in self._index]] = (
            False
        )
        possible = untried & (host_upper <= 1 - _HEADROOM) & self._near(trials)
        rates = None
        rated = rated_trials(trials)
        if rated or (not trials and rated_trials(context.warm_start)):
            rates = Rates(rated, context).predict(arrays)
            is_call = arrays.steps > arrays.steps.min()
            longest = _LONGEST_CALL_SECONDS * np.exp(rates.mean)
            possible &= ~(is_call & (arrays.steps * arrays.batch > longest))
        safe = possible & (upper <= 1 - _HEADROOM)
        chance = ndtr((1 - device) / np.maximum(device_off, _LEAST))
        shares = np.stack(
            [upper, host_upper, np.where(upper >= host_upper, device, host)]
        )
        return Feasible(untried, possible, safe, chance, shares), rates

    def _near(self, trials: Sequence[Trial]) -> Mask | bool:
        """Return which configs are near the finished trials, beyond which memory is not trusted."""
        finished = finished_trials(trials, self._context)
        if not finished:
            return True
        ooms = sum(trial.measurement.outcome.is_oom for trial in trials)
        leap = 1 if ooms >= _MOST_OOMS else _LEAP_FACTOR
        ran = self._context.arrays(finished)
        processes = max(1.0, ran.worker_processes.max())
        is_near = _within_leap(self._arrays.batch, ran.batch.max(), leap)
        return is_near & _within_leap(self._arrays.worker_processes, processes, leap)

    def _best(
        self,
        trials: Sequence[Trial],
        feasible: Feasible,
        rates: Prediction,
        *,
        is_short: bool,
    ) -> Decision:
        context = self._context
        may_win = dict.fromkeys(trial.config for trial in eligible(trials, context))
        done = [self._index[config] for config in may_win if config in self._index]
        again = np.zeros(len(self.configs), bool)
        again[done] = self._repeats
        if not done:
            # none of this space has run: what may be faster than the present config is worth one
            done = [self._nearest(self._baseline)]
            if not feasible.possible[done[0]]:
                # nothing to compare with, as that does not run
                probe = _fast_and_likely(rates, feasible)
                return self._proposed(probe, Reason.PROBE, feasible)
        leader = max(done, key=rates.mean.__getitem__)
        lead, deviation = rates.lead_over(leader)
        new = feasible.possible
        if is_short:
            new = new & (lead > 0)
        options = new | again
        if not options.any():
            return Decision(stop_reason=NONE_FASTER)
        chance = np.where(again, 1.0, feasible.chance)
        value = chance * self._worth(rates, np.array(done), np.flatnonzero(options))
        value /= relative_seconds(self._arrays, 1 - chance, trials, context)
        chosen = _cheapest(value, options)
        stop_reason = self._reason_to_stop(value[chosen], has_new=bool(new.any()))
        certain = feasible.safe & new
        if stop_reason and certain.any():
            # a caller that goes on all the same takes no risk
            chosen = _cheapest(value, certain)
        if again[chosen]:
            return self._proposed(chosen, Reason.AGAIN, feasible, stop_reason)
        return self._proposed(
            chosen,
            Reason.PROMISE if feasible.safe[chosen] else Reason.RISK,
            feasible,
            stop_reason,
            gain=math.expm1(lead[chosen]),
            most_gain=math.expm1(
                lead[chosen] + confidence.rough_deviations() * deviation[chosen]
            ),
            change=difference(self.configs[chosen], self.configs[leader]),
        )

    def _reason_to_stop(self, value: float, *, has_new: bool) -> str | None:
        tolerance = self._context.tolerance
        if value >= _WORTHWHILE_SHARE * tolerance:
            return None
        if has_new:
            return f"no other configuration is expected to gain {tolerance:.0%}"
        return EXHAUSTED

    def _worth(self, rates: Prediction, done: Indices, options: Indices) -> Vector:
        """Return what a run of each config is worth; 0 for those that cannot be chosen.

        A gain of the fastest counts, and a gain at the own batch size.
        """
        value = np.zeros(len(self.configs))
        replaced = self._index.get(self._baseline) if self._repeats else None
        value[options] = worth(rates, done, options, replaced)
        has_own_batch = self._arrays.batch == self._own_batch
        done = done[has_own_batch[done]]
        options = options[has_own_batch[options]]
        if len(done):
            value[options] += _OWN_SHARE * worth(rates, done, options, replaced)
        return value

    def _warm(self, feasible: Feasible, rates: Prediction) -> Decision:
        mean = np.where(feasible.safe, rates.mean, -np.inf)
        near = np.flatnonzero(mean >= mean.max() + math.log1p(-self._context.tolerance))
        chosen = min(
            near, key=lambda index: distance(self.configs[index], self._baseline)
        )
        return self._proposed(int(chosen), Reason.WARM_START, feasible)

    def _probe(self, trials: Sequence[Trial], feasible: Feasible) -> Decision:
        """Propose a first config, or a smaller batch if all failed.

        It has more than one worker only if the baseline has AUTOTUNE.
        """
        if not feasible.untried.any():
            return Decision(stop_reason=EXHAUSTED)
        if not feasible.safe.any():
            # the prediction may be wrong: the cheapest untried config may fit
            return self._proposed(
                int(np.argmax(feasible.untried)), Reason.PROBE, feasible
            )
        batch = self._baseline.batch_size or 1
        if not self._context.description.footprints:
            batch = min(batch, _SAFE_BATCH)
        if trials:
            batch = max(
                1, min(t.config.batch_size or 1 for t in trials) // _RETREAT_FACTOR
            )
        workers = AUTOTUNE if self._baseline.workers == AUTOTUNE else 1
        queue = AUTOTUNE if self._baseline.max_queue_size == AUTOTUNE else None
        target = FitConfig(
            batch,
            workers,
            queue,
            False,
            steps_per_execution=self._baseline.steps_per_execution,
        )
        return self._proposed(
            self._nearest(target, feasible.safe), Reason.PROBE, feasible
        )

    def _nearest(self, config: FitConfig, among: Mask | bool = True) -> int:
        apart = (
            self._arrays.coordinates
            - ConfigArrays([config], self._context.cores).coordinates
        )
        distances = (self._arrays.weights * np.abs(apart)).sum(1)
        return int(np.argmin(np.where(among, distances, np.inf)))

    def _proposed(
        self,
        index: int,
        reason: Reason,
        feasible: Feasible,
        stop: str | None = None,
        **predicted: Any,
    ) -> Decision:
        shares = feasible.shares[:, index].tolist()
        return Decision(
            Proposal(self.configs[index], reason, *shares, **predicted), stop
        )


class LargestBatch(FrontierSearch):
    """Proposes larger and larger batches: those that are certain to fit, then likely ones.

    The other knobs are the baseline's.
    """

    def __init__(
        self, space: SearchSpace, baseline: FitConfig, context: SearchContext, **_: Any
    ) -> None:
        others: dict[str, Any] = {
            knob: (getattr(baseline, knob),)
            for knob in space.knobs()
            if knob != "batch_size"
        }
        super().__init__(replace(space, **others), baseline, context)

    def _best(
        self,
        trials: Sequence[Trial],
        feasible: Feasible,
        rates: Prediction,
        *,
        is_short: bool,
    ) -> Decision:
        fitting = (trial for trial in trials if trial.fits(self._context.limits))
        largest = max((trial.config.batch_size or 1 for trial in fitting), default=0)
        is_larger = self._arrays.batch > largest
        safe = np.flatnonzero(feasible.safe & is_larger)
        if len(safe):
            return self._proposed(int(safe[-1]), Reason.LARGER, feasible)
        # a trial that runs out of memory harms nothing, and the bounds leave out what may well fit:
        # risks up to the first
        likely = np.flatnonzero(
            feasible.possible & (feasible.chance > _LIKELY) & is_larger
        )
        if len(likely) and not any(
            trial.measurement.outcome.is_oom for trial in trials
        ):
            return self._proposed(int(likely[-1]), Reason.LIKELY, feasible)
        return Decision(stop_reason="no larger batch is certain to fit")


def _percent(gain: float) -> str:
    return f"{gain:+.0%}" if round(gain, 2) else "0%"


def difference(config: FitConfig, other: FitConfig) -> str:
    """Describe how a config differs from another, in a few words."""
    words = []
    for knob, row in KNOBS.items():
        value = getattr(config, knob)
        reference = getattr(other, knob)
        is_idle = row.of_queue and not config.has_queue
        if None in (value, reference) or value == reference or is_idle:
            continue
        if AUTOTUNE in (value, reference):
            words.append(f"{row.label} {value_in_words(value)}")
        else:
            words.append(
                f"{row.more if value > reference else row.less} {row.label}".strip()
            )
    return ", ".join(words)


def _fast_and_likely(rates: Prediction, feasible: Feasible) -> int:
    """Return the config with the highest rate, weighted by its chance to fit."""
    likely_rate = rates.mean + np.log(np.maximum(feasible.chance, _LEAST))
    return int(np.argmax(np.where(feasible.possible, likely_rate, -np.inf)))


def _cheapest(value: Vector, configs: Mask) -> int:
    """Return the cheapest of some configs that are worth about as much as the best of them."""
    value = np.where(configs, np.maximum(value, 0.0), -1.0)
    # the cheapest come first
    return int(np.flatnonzero(value >= (1 - _TIE_RATIO) * value.max())[0])


def _within_leap(values: Vector, most: float, leap: int) -> Mask:
    """Return which values are within a leap of the largest that ran."""
    if leap == 1:
        return values <= most
    # a space may have no value within the leap: then the next one is tried
    next_larger = np.min(values, where=values > most, initial=np.inf)
    return (values <= leap * most) | (values == next_larger)
