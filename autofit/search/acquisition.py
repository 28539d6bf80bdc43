"""Decide what to try next from all trials so far. Pure.

    warm start   the config that an earlier tune of the same workload would choose now; replaces the probes
    probe        the present config, or a small batch where its memory is unknown; then another batch size, since the lines
                 of memory and of compute need two points
    step         a config on the way to a promising one that is too far beyond the finished trials
    promise      the config with the highest expected improvement of throughput, among those whose upper bounds of memory
                 are within the limits
    stop         when the expected gain is not worth a trial: less than half the tolerance, or than what the trial takes of
                 the training that it speeds up

The constants were chosen on simulated searches; see tests/benchmarks/search.py.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np

from autofit.records.description import Description
from autofit.records.states import Outcome
from autofit.records.trial import AUTOTUNE, FitConfig, Limits, Trial
from autofit.search.config_arrays import ConfigArrays, Mask, Vector
from autofit.search.decision import INTERVAL_DEVIATIONS, Decision, Proposal, Reason, difference
from autofit.search.feasibility import Feasibility, FeasibleSet
from autofit.search.improvement import cheapest, expected_improvement
from autofit.search.selection import distance
from autofit.search.space import SearchSpace
from autofit.search.surrogate.throughput import RatePrediction, ThroughputSurrogate

EXHAUSTED = "every configuration has been tried, or is known or predicted not to fit"
_RETREAT_FACTOR = 4  # a first batch that does not fit is divided by it: an OOM costs as much as ten good trials
_SAFE_BATCH = 8  # samples of the first batch when nothing is known of its memory
_STRIDE_FACTOR = 4  # from the first batch to the second: far enough for a line, near enough for a bound from one point
_LEAST_STRIDE_FACTOR = 2  # a step up by less than this reveals less than a step down
_SETTLED_TRIALS = 3  # the fewest before a search is settled
_WORTHWHILE_SHARE = 0.5  # of the tolerance: the least expected gain that is worth a trial
_DETOUR_RATIO = 1.3  # expected improvement of a goal out of reach, relative to the best candidate's, that is worth a step
_LEAST_PROGRESS_OCTAVES = 0.5  # by which a step must be nearer to the goal than any finished trial
_MISLEADING_ERROR = 0.15  # of a log rate: predictions that are off by more are no guide ...
_MISLEADING_TRIALS = 6  # ... once there are as many trials

_Readings = tuple[tuple[FitConfig, float | None], ...]


class FrontierSearch:
    """Proposes configs of one space for one workload.

    Args:
        space: the legal configs.
        baseline: the user's present config.
        description: of the workload.
        limits: under which trials run.
        cores: CPU cores.
        on_cpu: whether the train step itself takes host memory and cores.
        tolerance: relative gain below which configs count as equally fast (0.02 is 2 %).
        headroom: share of each limit that the upper bound of a predicted memory must leave free.
        max_oom: number of OOMs after which nothing larger than the finished trials is proposed.
        expected_training_seconds: how long the fastest config so far will train; None for a training so long that any trial
            pays.
        warm_start: finished trials of an earlier tune of the same workload under other limits or versions.
    """

    def __init__(
        self,
        space: SearchSpace,
        baseline: FitConfig,
        description: Description,
        limits: Limits,
        *,
        cores: int,
        on_cpu: bool,
        tolerance: float,
        headroom: float,
        max_oom: int,
        expected_training_seconds: float | None = None,
        warm_start: Sequence[Trial] = (),
    ) -> None:
        self.feasible = FeasibleSet(
            space,
            description,
            limits,
            on_cpu=on_cpu,
            headroom=headroom,
            max_oom=max_oom,
            warm_start=warm_start,
            cores=cores,
        )
        self._points = self.feasible.arrays.log_points()
        self._baseline, self._description, self._limits = baseline, description, limits
        self._cores, self._on_cpu, self._tolerance = cores, on_cpu, tolerance
        self._training_seconds = expected_training_seconds
        self._errors: dict[_Readings, float] = {}
        self._predicted: tuple[_Readings, Vector] = (), np.empty(0)
        self._decided: tuple[tuple[Trial, ...], Decision] | None = None
        ran = _ran(warm_start)
        self._warm_start = self._surrogate(ran) if ran else None

    def decide(self, trials: Sequence[Trial]) -> Decision:
        """What to do after these trials; the last decision is cached, since Optuna asks twice a trial."""
        trials = tuple(trials)
        if self._decided is None or self._decided[0] != trials:
            self._decided = trials, self._decide(trials)
        return self._decided[1]

    def _decide(self, trials: Sequence[Trial]) -> Decision:
        error, feasibility = self.error(trials), self.feasible.feasibility(trials)
        if error is not None and error > _MISLEADING_ERROR:
            return self._fall_back(error, feasibility)
        ran = _ran(trials)
        if not ran:
            return self._warm(feasibility) if self._warm_start and not trials else self._probe(trials, feasibility)
        if not feasibility.candidates.any():
            return self._stop(EXHAUSTED, feasibility)
        return self._promise(ran, feasibility)

    def _stop(self, reason: str, feasibility: Feasibility) -> Decision:
        return Decision(stop_reason=reason, candidates=self.feasible.configs_at(feasibility.candidates))

    def _fall_back(self, error: float, feasibility: Feasibility) -> Decision:
        candidates = self.feasible.configs_at(feasibility.candidates)
        reason = f"predictions of the rate are off by {error:.0%}: Optuna's TPE proposes from here on, within what fits"
        return Decision(stop_reason=None if candidates else EXHAUSTED, fallback=reason, candidates=candidates)

    def _propose(
        self,
        index: int,
        reason: Reason,
        feasibility: Feasibility,
        ran: Sequence[Trial] = (),
        lead: float | None = None,
        deviation: float = 0.0,
    ) -> Decision:
        """Propose the config with this index; `ran` have a rate, `lead` ± `deviation` is its log rate over the best."""
        config = self.feasible.configs[index]
        fitted = [t for t in ran if t.fits(self._limits)]
        best = max(fitted, key=lambda t: t.measurement.samples_per_second or 0.0, default=None)
        return Decision(
            Proposal(
                config,
                reason,
                None if lead is None else math.expm1(lead),
                most_gain=None if lead is None else math.expm1(lead + INTERVAL_DEVIATIONS * deviation),
                device_share=float(feasibility.device[index]),
                host_share=float(feasibility.host[index]),
                likely_share=float(feasibility.likely[index]),
                change="" if best is None else difference(config, best.config),
            )
        )

    def _warm(self, feasibility: Feasibility) -> Decision:
        """The config nearest to the baseline among those near the best that an earlier tune predicts."""
        if self._warm_start is None or not feasibility.candidates.any():
            return self._probe((), feasibility)
        rates = np.where(feasibility.candidates, self._warm_start.predict(self.feasible.arrays).mean, -np.inf)
        near = np.flatnonzero(rates >= rates.max() + math.log1p(-self._tolerance))
        chosen = min(near, key=lambda index: distance(self.feasible.configs[index], self._baseline))
        return self._propose(int(chosen), Reason.WARM_START, feasibility)

    def _probe(self, trials: Sequence[Trial], feasibility: Feasibility) -> Decision:
        """The first probe, without parallel workers unless the baseline leaves them to AUTOTUNE; then smaller ones.

        The cheapest config is tried even if it is predicted not to fit: the prediction may be wrong.
        """
        if not feasibility.candidates.any():
            if not feasibility.untried.any():
                return self._stop(EXHAUSTED, feasibility)
            return self._propose(int(np.argmax(feasibility.untried)), Reason.PROBE, feasibility)
        batch = self._baseline.batch_size or 1
        if not self._description.footprints:
            batch = min(batch, _SAFE_BATCH)
        if trials:
            batch = max(1, min(t.config.batch_size or 1 for t in trials) // _RETREAT_FACTOR)
        workers = AUTOTUNE if self._baseline.workers == AUTOTUNE else 1
        queue = AUTOTUNE if self._baseline.max_queue_size == AUTOTUNE else None
        target = ConfigArrays.of([FitConfig(batch, workers, queue, False)], self._cores).log_points()
        distance = np.abs(self._points - target).sum(1)
        nearest = int(np.argmin(np.where(feasibility.candidates, distance, np.inf)))
        return self._propose(nearest, Reason.PROBE, feasibility)

    def _promise(self, ran: Sequence[Trial], feasibility: Feasibility) -> Decision:
        """The config with the highest expected improvement, the second probe before it, or a step towards a better one."""
        candidates, arrays, index = feasibility.candidates, self.feasible.arrays, self.feasible.index
        predicted = self._predict(ran, arrays)
        self._predicted = _readings(ran), predicted.mean
        fitted = [index[t.config] for t in ran if t.config in index and t.fits(self._limits)]
        best = float(predicted.mean[fitted].max()) if fitted else float(predicted.mean.min())
        improvement = expected_improvement(predicted.mean - best, predicted.deviation)

        def propose(chosen: int, reason: Reason) -> Decision:
            lead = float(predicted.mean[chosen]) - best
            return self._propose(chosen, reason, feasibility, ran, lead, float(predicted.deviation[chosen]))

        second = self._second_batch(ran, candidates) if self._warm_start is None else None
        if second is not None:
            probes = candidates & (arrays.batch == second)
            return propose(cheapest(improvement, probes, feasibility.share), Reason.PROBE)
        chosen = cheapest(improvement, candidates, feasibility.share)
        cost, worthwhile = self._cost(ran), _WORTHWHILE_SHARE * self._tolerance
        is_costly, worthwhile = cost > worthwhile, max(cost, worthwhile)
        expected = np.where(feasibility.expected, improvement, -np.inf)
        goal = int(np.argmax(expected))
        if expected[goal] > _DETOUR_RATIO * max(improvement[chosen], worthwhile):
            step = self._step_to(goal, candidates, ran)
            if step is not None:
                return propose(step, Reason.STEP)
        if improvement[chosen] >= worthwhile:
            return propose(chosen, Reason.PROMISE)
        if len(ran) >= _SETTLED_TRIALS:
            gain = "save as much of the training as a trial takes" if is_costly else f"gain {self._tolerance:.0%}"
            return self._stop(f"no other configuration is expected to {gain}", feasibility)
        return propose(chosen, Reason.PROBE)

    def _cost(self, ran: Sequence[Trial]) -> float:
        """What a trial takes of the expected training; an expected improvement of the log rate saves as much of it."""
        if self._training_seconds is None:
            return 0.0
        return statistics.fmean(trial.measurement.seconds for trial in ran) / self._training_seconds

    def rates(self, trials: Sequence[Trial]) -> dict[FitConfig, tuple[float, float]]:
        """For each config that ran, the estimated log rate (samples per second) and its standard deviation.

        A reading is one draw of a noisy rate; the readings of neighbours and the two ceilings are evidence, too.
        """
        ran = _ran(trials)
        if not ran:
            return {}
        predicted = self._predict(ran, ConfigArrays.of([t.config for t in ran], self._cores))
        return {t.config: (float(m), float(s)) for t, m, s in zip(ran, predicted.mean, predicted.deviation, strict=True)}

    def error(self, trials: Sequence[Trial]) -> float | None:
        """Median error of the last three predictions, relative; None while there are too few trials to judge."""
        ran = _ran(trials)
        if len(ran) < _MISLEADING_TRIALS:
            return None
        return statistics.median(self._error(ran[: count + 1]) for count in range(len(ran) - 3, len(ran)))

    def _error(self, ran: Sequence[Trial]) -> float:
        """Error of the prediction of the last trial by those before it."""
        key = _readings(ran)
        if key not in self._errors:
            expected = self._expected(ran[:-1], ran[-1].config)
            self._errors[key] = abs(expected - math.log(ran[-1].measurement.samples_per_second or 1.0))
        return self._errors[key]

    def _expected(self, ran: Sequence[Trial], config: FitConfig) -> float:
        """The log rate that these trials predict; cached where they led to the proposal of the config."""
        readings, means = self._predicted
        if readings == _readings(ran) and config in self.feasible.index:
            return float(means[self.feasible.index[config]])
        return float(self._predict(ran, ConfigArrays.of([config], self._cores)).mean[0])

    def _predict(self, ran: Sequence[Trial], arrays: ConfigArrays) -> RatePrediction:
        return self._surrogate(ran, self._warm_start).predict(arrays)

    def _surrogate(self, ran: Sequence[Trial], warm_start: ThroughputSurrogate | None = None) -> ThroughputSurrogate:
        return ThroughputSurrogate(
            ran,
            cores=self._cores,
            sample_bytes=self._description.sample_bytes,
            on_cpu=self._on_cpu,
            takes_turns=self._description.takes_turns,
            warm_start=warm_start,
        )

    def _second_batch(self, ran: Sequence[Trial], candidates: Mask) -> float | None:
        """The batch size of the second probe; None once two sizes have run.

        It is the largest candidate up to `_STRIDE_FACTOR` times the first; a smaller one where memory allows no larger.
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
        """The candidate nearest to a goal; None unless it is nearer than every finished trial."""
        distance = np.abs(self._points - self._points[goal]).sum(1)
        index = self.feasible.index
        nearest = min((float(distance[index[t.config]]) for t in ran if t.config in index), default=math.inf)
        step = int(np.argmin(np.where(candidates, distance, np.inf)))
        return step if distance[step] < nearest - _LEAST_PROGRESS_OCTAVES else None


def _readings(ran: Sequence[Trial]) -> _Readings:
    return tuple((t.config, t.measurement.samples_per_second) for t in ran)


def _ran(trials: Sequence[Trial]) -> list[Trial]:
    return [t for t in trials if t.measurement.outcome is Outcome.OK and t.measurement.samples_per_second]
