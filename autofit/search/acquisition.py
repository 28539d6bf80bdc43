"""Decide what to try next, given all trials so far. This module has no side effects.

    warm start   Try the config that the trials of an earlier tune of the same workload predict to be best. This replaces
                 the probes.
    probe        Try the present config, or a small batch size if memory is unknown. Then try another batch size: the
                 linear models of memory and of the step's time need two points.
    step         Try a config on the way to a promising one that is too far beyond the finished trials.
    promise      Try the config with the highest expected improvement of throughput, among the configs whose upper bounds
                 of memory are within the limits.
    risk         Try a config whose device memory may not fit, if its expected gain is worth the time of an OOM.
    stop         Stop when the expected gain is not worth a trial: it is less than half the tolerance.

The constants were chosen with simulated searches; see tests/benchmarks/search.py.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from autofit.records.states import Outcome
from autofit.records.trial import AUTOTUNE, FitConfig, Trial
from autofit.search.config_arrays import DATA_COLUMNS, ConfigArrays, Mask, Vector
from autofit.search.context import SearchContext
from autofit.search.decision import INTERVAL_DEVIATIONS, Decision, Proposal, Reason, difference
from autofit.search.feasibility import Feasibility, FeasibleSet
from autofit.search.space import SearchSpace, distance
from autofit.search.surrogate.throughput import ThroughputSurrogate

EXHAUSTED = "every configuration has been tried, or is known or predicted not to fit"
TOO_SLOW = f"{EXHAUSTED}, or resembles one that was too slow or hung"
_RETREAT_FACTOR = 4  # a first batch size that does not fit is divided by this: an OOM costs as much as ten good trials
_SAFE_BATCH = 8  # first batch size, in samples, if nothing is known about its memory
_STRIDE_FACTOR = 4  # second batch size / first: far enough to fit a line, near enough for a bound from one point
_LEAST_STRIDE_FACTOR = 2  # a smaller step up reveals less than a step down
_SETTLED_TRIALS = 3  # a search stops after this many trials at the earliest
_WORTHWHILE_SHARE = 0.5  # a trial is worthwhile if its expected gain is at least this share of the tolerance
# longest call of several steps that is tried: beside it, the overhead of milliseconds is small, and a trial takes 7 calls
_CALL_SECONDS = 1.0
_OOM_SECONDS = 20.0  # that an OOM takes beyond a trial: TensorFlow repeats a failing allocation for 10 s
_DETOUR_RATIO = 1.3  # take a step if the goal's expected improvement is this many times the best candidate's
_LEAST_PROGRESS_OCTAVES = 0.5  # a step must be nearer to the goal than every finished trial, by this distance
# of `coordinates`: 4 octaves between threads and processes
_WEIGHTS = np.array((1.0, 1.0, 0.3, 4.0, 1.0, 0.3, 0.3))
_TIE_RATIO = 0.1  # expected improvements that differ by less than this share count as equal: the cheaper config is taken


class FrontierSearch:
    """Proposes configs from a search space for one workload; `baseline` is the user's present config."""

    def __init__(self, space: SearchSpace, baseline: FitConfig, context: SearchContext) -> None:
        self.feasible = FeasibleSet(space, context)
        self._points = _WEIGHTS * self.feasible.arrays.coordinates()
        self._baseline, self._context = baseline, context
        self._last: tuple[tuple[Trial, ...], Decision] | None = None
        ran = _ran(context.warm_start)
        self._warm_start = ThroughputSurrogate(ran, context) if ran else None

    def propose(self, trials: Sequence[Trial]) -> Decision:
        """Propose the next config after these trials, or give the reason to stop."""
        trials = tuple(trials)
        if self._last is None or self._last[0] != trials:  # Optuna asks twice
            self._last = trials, self._decide(trials)
        return self._last[1]

    def rates(self, trials: Sequence[Trial]) -> dict[FitConfig, tuple[float, float]]:
        """Estimate the log rate of each config that ran, and its standard deviation.

        Readings are noisy, so the estimate also uses similar configs, and the rates of the step and of the input alone.
        """
        ran = _ran(trials)
        if not ran:
            return {}
        at = ConfigArrays.of([t.config for t in ran], self._context.cores)
        predicted = ThroughputSurrogate(ran, self._context, self._warm_start).predict(at)
        return {t.config: (float(m), float(s)) for t, m, s in zip(ran, *predicted, strict=True)}

    def _decide(self, trials: Sequence[Trial]) -> Decision:
        feasibility, ran = self.feasible.feasibility(trials), _ran(trials)
        if self._warm_start and not trials and feasibility.candidates.any():
            return self._warm(self._warm_start, feasibility)
        if not ran:
            return self._probe(trials, feasibility)
        if not (feasibility.candidates | feasibility.risky).any():
            is_slow = any(trial.measurement.outcome is Outcome.TIMEOUT for trial in trials)
            return Decision(stop_reason=TOO_SLOW if is_slow else EXHAUSTED)
        return self._promise(ran, feasibility)

    def _proposed(self, index: int, reason: Reason, feasibility: Feasibility, **prediction: Any) -> Decision:
        """Propose the config with this index; `prediction` sets the fields of `Proposal` that describe its rate."""
        return Decision(
            Proposal(
                self.feasible.configs[index],
                reason,
                device_share=float(feasibility.device[index]),
                host_share=float(feasibility.host[index]),
                likely_share=float(feasibility.likely[index]),
                **prediction,
            )
        )

    def _warm(self, warm_start: ThroughputSurrogate, feasibility: Feasibility) -> Decision:
        """Propose the config nearest to the baseline among those that an earlier tune predicts to be near the best."""
        predicted, _ = warm_start.predict(self.feasible.arrays)
        rates = np.where(feasibility.candidates, predicted, -np.inf)
        near = np.flatnonzero(rates >= rates.max() + math.log1p(-self._context.tolerance))
        chosen = min(near, key=lambda index: distance(self.feasible.configs[index], self._baseline))
        return self._proposed(int(chosen), Reason.WARM_START, feasibility)

    def _probe(self, trials: Sequence[Trial], feasibility: Feasibility) -> Decision:
        """Propose a probe, or a smaller batch if all trials failed; parallel workers only if the baseline uses AUTOTUNE."""
        if not feasibility.untried.any():
            return Decision(stop_reason=EXHAUSTED)
        if not feasibility.candidates.any():  # the prediction may be wrong: the cheapest untried config may fit
            return self._proposed(int(np.argmax(feasibility.untried)), Reason.PROBE, feasibility)
        batch = self._baseline.batch_size or 1
        if not self._context.description.footprints:
            batch = min(batch, _SAFE_BATCH)
        if trials:
            batch = max(1, min(t.config.batch_size or 1 for t in trials) // _RETREAT_FACTOR)
        workers = AUTOTUNE if self._baseline.workers == AUTOTUNE else 1
        queue = AUTOTUNE if self._baseline.max_queue_size == AUTOTUNE else None
        target = FitConfig(batch, workers, queue, False, steps_per_execution=self._baseline.steps_per_execution)
        coordinates = ConfigArrays.of([target], self._context.cores).coordinates()
        octaves = np.abs(self._points - _WEIGHTS * coordinates).sum(1)
        nearest = int(np.argmin(np.where(feasibility.candidates, octaves, np.inf)))
        return self._proposed(nearest, Reason.PROBE, feasibility)

    def _promise(self, ran: Sequence[Trial], feasibility: Feasibility) -> Decision:
        """Propose a second probe if due; else the config of highest expected improvement, or a step to a better one."""
        arrays, index = self.feasible.arrays, self.feasible.index
        surrogate = ThroughputSurrogate(ran, self._context, self._warm_start)
        rates, deviations = surrogate.predict(arrays)
        is_long = (arrays.steps > arrays.steps.min()) & (arrays.steps * arrays.batch > _CALL_SECONDS * np.exp(rates))
        feasibility = feasibility.without(is_long)
        candidates = feasibility.candidates
        share = np.maximum(feasibility.device, feasibility.host)
        fitted = [t for t in ran if t.fits(self._context.limits)]
        fastest = max(fitted, key=lambda trial: trial.samples_per_second, default=None)
        ran_in_space = [index[t.config] for t in fitted if t.config in index]
        best = float(rates[ran_in_space].max() if ran_in_space else rates.min())
        if ran_in_space:
            leader = max(ran_in_space, key=rates.__getitem__)
            others = (self._points[:, :DATA_COLUMNS] == self._points[leader, :DATA_COLUMNS]).all(1)
            others[leader] = False
            deviations[others] = surrogate.deviation_from(arrays.at([leader]), arrays.at(others))
        improvement = expected_improvement(rates - best, deviations)

        def propose(chosen: int, reason: Reason) -> Decision:
            lead, deviation = float(rates[chosen]) - best, float(deviations[chosen])
            gain, most_gain = math.expm1(lead), math.expm1(lead + INTERVAL_DEVIATIONS * deviation)
            change = "" if fastest is None else difference(self.feasible.configs[chosen], fastest.config)
            return self._proposed(chosen, reason, feasibility, gain=gain, most_gain=most_gain, change=change)

        second = self._second_batch(ran, candidates) if self._warm_start is None else None
        if second is not None:
            probes = candidates & (arrays.batch == second)
            return propose(_cheapest(improvement, probes, share), Reason.PROBE)
        worthwhile = _WORTHWHILE_SHARE * self._context.tolerance
        risk = self._risk(improvement, worthwhile, ran, feasibility)
        if not candidates.any():
            return Decision(stop_reason=EXHAUSTED) if risk is None else propose(risk, Reason.RISK)
        chosen = _cheapest(improvement, candidates, share)
        # the cost of a call has a narrow prior: other steps in a call need no trial to settle the model
        known = candidates & np.isin(arrays.steps, [t.config.steps_per_execution or 1 for t in ran])
        expected = np.where(feasibility.expected, improvement, -np.inf)
        goal = int(np.argmax(expected))
        step = None
        if expected[goal] > _DETOUR_RATIO * max(improvement[chosen], worthwhile):
            step = self._step_to(goal, candidates, ran)
        if step is not None:
            decision = propose(step, Reason.STEP)
        elif risk is not None and feasibility.chance[risk] * improvement[risk] > _DETOUR_RATIO * improvement[chosen]:
            decision = propose(risk, Reason.RISK)
        elif improvement[chosen] >= worthwhile:
            decision = propose(chosen, Reason.PROMISE)
        elif len(ran) < _SETTLED_TRIALS and known.any():
            decision = propose(_cheapest(improvement, known, share), Reason.PROBE)
        else:
            reason = f"no other configuration is expected to gain {self._context.tolerance:.0%}"
            decision = replace(propose(chosen, Reason.PROMISE), stop_reason=reason)
        return decision

    def _risk(self, improvement: Vector, worthwhile: float, ran: Sequence[Trial], feasibility: Feasibility) -> int | None:
        """Return the config with the highest expected gain whose device memory may not fit; None if none is worth an OOM.

        The expected improvement is weighted by the probability that the config fits (Gardner et al., Bayesian optimization
        with inequality constraints, 2014). It must be worth the trial, and the time of an OOM weighted by its probability.
        """
        if not feasibility.risky.any():
            return None
        gain = np.where(feasibility.risky, feasibility.chance * improvement, -np.inf)
        best = int(np.argmax(gain))
        mean_seconds = statistics.fmean(trial.measurement.seconds for trial in ran)
        ooms_in_trials = (1 - feasibility.chance[best]) * _OOM_SECONDS / (mean_seconds or _OOM_SECONDS)
        return best if gain[best] >= worthwhile * (1 + ooms_in_trials) else None

    def _second_batch(self, ran: Sequence[Trial], candidates: Mask) -> float | None:
        """Return the batch size of the second probe; None if two sizes have run or no other size is a candidate.

        The second size is the largest candidate up to `_STRIDE_FACTOR` times the first size. If that is less than
        `_LEAST_STRIDE_FACTOR` times the first size, a size below the first is preferred.
        """
        batches = {t.config.batch_size or 1 for t in ran}
        first, possible = batches.pop(), np.unique(self.feasible.arrays.batch[candidates])
        if batches:
            return None
        above, below = possible[(possible > first) & (possible <= _STRIDE_FACTOR * first)], possible[possible < first]
        if len(above) and above[-1] >= _LEAST_STRIDE_FACTOR * first:
            return float(above[-1])
        if len(below):
            return float(below[np.argmin(np.abs(below - first / _STRIDE_FACTOR))])
        return float(above[-1]) if len(above) else None

    def _step_to(self, goal: int, candidates: Mask, ran: Sequence[Trial]) -> int | None:
        """Return the index of the candidate nearest to a goal; None if a finished trial is about as near."""
        octaves = np.abs(self._points - self._points[goal]).sum(1)
        index = self.feasible.index
        nearest = min((float(octaves[index[t.config]]) for t in ran if t.config in index), default=math.inf)
        step = int(np.argmin(np.where(candidates, octaves, np.inf)))
        return step if octaves[step] < nearest - _LEAST_PROGRESS_OCTAVES else None


def expected_improvement(lead: Vector, deviation: Vector, least: float = 0.0) -> Vector:
    """Return the expected improvement over the best config, in log rate.

    A config's lead is normally distributed, with mean `lead` and standard deviation `deviation`; below `least` it counts as
    0. Source: Jones, Schonlau and Welch, Efficient global optimization of expensive black-box functions, 1998.
    """
    from scipy.special import ndtr  # loading takes a quarter of a second, which a stored result does not need

    z = (lead - least) / np.maximum(deviation, 1e-9)
    density = np.exp(-0.5 * np.square(z)) / math.sqrt(2 * math.pi)
    return np.asarray(lead * ndtr(z) + deviation * density)


def _cheapest(improvement: Vector, candidates: Mask, share: Vector) -> int:
    """Return the candidate with the least memory (to a tenth of the limit), then the cheapest, among those that tie."""
    indices = np.flatnonzero(candidates & (improvement >= (1 - _TIE_RATIO) * improvement[candidates].max()))
    return int(indices[np.argmin(np.round(10 * share[indices]))])


def _ran(trials: Sequence[Trial]) -> list[Trial]:
    return [t for t in trials if t.measurement.outcome is Outcome.OK and t.measurement.samples_per_second]
