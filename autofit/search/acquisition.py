"""What to try next, from all that has been tried. Pure: trials in, a proposal or a reason to stop out.

    recall     what an earlier tune of the same workload would say now; it takes the place of the probes
    probe      the present config, or a small batch where memory is not known to hold it; then another batch: two points
               make the lines of memory and of compute
    step       a config on the way to one that promises much, and that is still too far from what has run to be sure of
    propose    the config with the highest expected improvement of the predicted throughput, among those whose memory's
               upper bound is within the limits
    stop       when what may still be gained is not worth a trial

Expected improvement is that of the logarithm of the rate over the best rate there is (Jones, Schonlau and Welch, Efficient
global optimization of expensive black-box functions, 1998). The constants were chosen on simulated searches; see
tests/benchmarks/search.py.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np

from autofit.records.trial import Description, FitConfig, Limits, Outcome, Trial
from autofit.search.config_arrays import ConfigArrays, Mask, Vector
from autofit.search.decision import Decision, Proposal, Reason, difference
from autofit.search.feasibility import Feasibility, FeasibleSet
from autofit.search.space import SearchSpace
from autofit.search.surrogate.throughput import RatePrediction, ThroughputSurrogate

EXHAUSTED = "every configuration has been tried, or is known or predicted not to fit"
_RETREAT = 4  # a first batch that does not fit is divided by this: an OOM costs as much as ten good trials
_SAFE_BATCH = 8  # the first batch where nothing is known of the memory
_STRIDE = 4  # from the first batch to the second: far enough for a line, near enough for a bound that knows one point
_NARROW = 2  # a step up by less than this says less than a step down
_FEWEST_TRIALS = 3  # before anything is said to be settled
_WORTH = 0.5  # of the tolerance: what a further trial must promise to gain
_NEAR = 0.1  # promises that differ by less are alike: the cheaper config is taken
_FAR = 1.3  # a goal out of reach must promise so many times more than what is within it to be worth a step on the way
_STEP = 0.5  # how much nearer to the goal than anything before a step must come, octaves
_OTHER_KIND = 4.0  # octaves from threads to processes
_QUEUE_WEIGHT = 0.3  # an octave of the queue is worth so many of batch and workers
_UNSURE = 0.15  # predictions further off than this, in logarithms, are no guide ...
_UNSURE_AFTER = 6  # ... if they still are after so many trials

_Readings = tuple[tuple[FitConfig, float | None], ...]


class FrontierProposer:
    """Proposes configs of one space for one workload.

    Args:
        space: the legal configs.
        baseline: the user's present config.
        description: of the workload.
        limits: under which trials run.
        cores: CPU cores.
        on_cpu: whether the train step itself takes host memory and cores.
        tolerance: gains below it do not matter (0.02 is 2 %).
        risk: the share of each limit that the upper bound of a prediction may reach.
        max_oom: after so many OOMs nothing larger than what has run is proposed.
        warm_start: trials of an earlier tune of the same workload under other limits or versions, that ran to their end.
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
        risk: float,
        max_oom: int,
        warm_start: Sequence[Trial] = (),
    ) -> None:
        self.feasible = FeasibleSet(
            space, description, limits, on_cpu=on_cpu, risk=risk, max_oom=max_oom, warm_start=warm_start
        )
        self._points = _log_points(self.feasible.arrays)
        self._baseline, self._description, self._limits = baseline, description, limits
        self._cores, self._on_cpu, self._tolerance = cores, on_cpu, tolerance
        self._errors: dict[_Readings, float] = {}
        self._predicted: tuple[_Readings, Vector] = (), np.empty(0)
        self._decided: tuple[tuple[Trial, ...], Decision] | None = None
        ran = _ran(warm_start)
        self._warm_start = self._surrogate(ran) if ran else None

    def decide(self, trials: Sequence[Trial]) -> Decision:
        """What to do after these trials; the same question is answered once."""
        asked = tuple(trials)
        if self._decided is None or self._decided[0] != asked:
            self._decided = asked, self._decide(asked)
        return self._decided[1]

    def _decide(self, trials: Sequence[Trial]) -> Decision:
        error, feasibility = self.error(trials), self.feasible.feasibility(trials)
        if error is not None and error > _UNSURE:
            candidates = self.feasible.configs_at(feasibility.candidates)
            why = (
                f"throughput is not as predicted (off by {error:.0%}): Optuna's TPE proposes from here on, within what fits"
            )
            return Decision(stop_reason=None if candidates else EXHAUSTED, fallback=why, candidates=candidates)
        ran = _ran(trials)
        found = self._next(ran, feasibility) if ran else self._first(trials, feasibility)
        if isinstance(found, str):
            return Decision(stop_reason=found, candidates=self.feasible.configs_at(feasibility.candidates))
        index, reason, gain = found
        device, host = float(feasibility.device[index]), float(feasibility.host[index])
        config, best = self.feasible.configs[index], self._best(ran)
        change = "" if best is None else difference(config, best)
        return Decision(Proposal(config, reason, gain, device, host, float(feasibility.likely[index]), change))

    def _best(self, ran: Sequence[Trial]) -> FitConfig | None:
        """The config with the highest reading among those that fit."""
        fitted = [t for t in ran if t.fits(self._limits)]
        return max(fitted, key=lambda t: t.measurement.samples_per_second or 0.0).config if fitted else None

    def _next(self, ran: Sequence[Trial], feasibility: Feasibility) -> tuple[int, Reason, float | None] | str:
        """The place of the next config, its phase and its gain; or why there is none. `ran` are trials with a rate."""
        candidates, index = feasibility.candidates, self.feasible.index
        if not candidates.any():
            return EXHAUSTED
        predicted = self._predict(ran, self.feasible.arrays)
        self._predicted = _readings(ran), predicted.mean
        fitted = [index[t.config] for t in ran if t.config in index and t.fits(self._limits)]
        best = float(predicted.mean[fitted].max()) if fitted else float(predicted.mean.min())
        improvement = expected_improvement(predicted, best)
        second = self._second_batch(ran, candidates) if self._warm_start is None else None
        chosen = _cheapest(
            improvement,
            candidates if second is None else candidates & (self.feasible.arrays.batch == second),
            feasibility.share,
        )
        reason, worth = Reason.PROMISE if second is None else Reason.PROBE, _WORTH * self._tolerance
        may = feasibility.expected
        if second is None and may.any() and improvement[may].max() > _FAR * max(improvement[chosen], worth):
            step = self._step_to(int(np.argmax(np.where(may, improvement, -np.inf))), candidates, ran)
            chosen, reason = (chosen, reason) if step is None else (step, Reason.STEP)
        if reason is Reason.PROMISE and len(ran) >= _FEWEST_TRIALS and improvement[chosen] < worth:
            return f"no other configuration is expected to gain {self._tolerance:.0%}"
        return chosen, reason, math.expm1(predicted.mean[chosen] - best)

    def rates(self, trials: Sequence[Trial]) -> dict[FitConfig, tuple[float, float]]:
        """What is thought of each config that ran: the logarithm of its samples per second, and how unsure that is.

        A reading is one draw of a noisy rate; its neighbours and the two ceilings say something of it, too.
        """
        ran = _ran(trials)
        if not ran:
            return {}
        predicted = self._predict(ran, ConfigArrays.of([t.config for t in ran]))
        return {t.config: (float(m), float(s)) for t, m, s in zip(ran, predicted.mean, predicted.deviation, strict=True)}

    def error(self, trials: Sequence[Trial]) -> float | None:
        """How far the last three predictions were off (median, relative); None before there are enough trials to judge."""
        ran = _ran(trials)
        if len(ran) < _UNSURE_AFTER:
            return None
        return statistics.median(self._error(ran[: count + 1]) for count in range(len(ran) - 3, len(ran)))

    def _error(self, ran: Sequence[Trial]) -> float:
        """How far the last trial was from what those before it predicted."""
        key = _readings(ran)
        if key not in self._errors:
            foreseen = self._foreseen(ran[:-1], ran[-1].config)
            self._errors[key] = abs(foreseen - math.log(ran[-1].measurement.samples_per_second or 1.0))
        return self._errors[key]

    def _foreseen(self, ran: Sequence[Trial], config: FitConfig) -> float:
        """The logarithm of the rate that these trials predict; known already where they proposed the config."""
        readings, means = self._predicted
        if readings == _readings(ran) and config in self.feasible.index:
            return float(means[self.feasible.index[config]])
        return float(self._predict(ran, ConfigArrays.of([config])).mean[0])

    def _predict(self, ran: Sequence[Trial], arrays: ConfigArrays) -> RatePrediction:
        return self._surrogate(ran, self._warm_start).predict(arrays)

    def _surrogate(self, ran: Sequence[Trial], warm_start: ThroughputSurrogate | None = None) -> ThroughputSurrogate:
        size = self._description.sample_bytes
        return ThroughputSurrogate(ran, cores=self._cores, sample_bytes=size, on_cpu=self._on_cpu, warm_start=warm_start)

    def _first(self, trials: Sequence[Trial], feasibility: Feasibility) -> tuple[int, Reason, None] | str:
        """The first probe, with one producer, or a smaller one after those that did not run.

        The cheapest config is left even if it is predicted not to fit: the prediction may be wrong.
        """
        if not feasibility.candidates.any():
            return (int(np.argmax(feasibility.untried)), Reason.PROBE, None) if feasibility.untried.any() else EXHAUSTED
        if self._warm_start is not None and not trials:
            rates = np.where(feasibility.candidates, self._warm_start.predict(self.feasible.arrays).mean, -np.inf)
            return int(np.argmax(rates >= rates.max() + math.log1p(-self._tolerance))), Reason.WARM_START, None
        batch = self._baseline.batch_size or 1
        wanted = batch if self._description.footprints else min(batch, _SAFE_BATCH)
        if trials:
            wanted = max(1, min(t.config.batch_size or 1 for t in trials) // _RETREAT)
        wanted_place = _log_points(ConfigArrays.of([FitConfig(wanted, 1, None, False)]))
        distance = np.abs(self._points - wanted_place).sum(1)
        return int(np.argmin(np.where(feasibility.candidates, distance, np.inf))), Reason.PROBE, None

    def _second_batch(self, ran: Sequence[Trial], candidates: Mask) -> float | None:
        """The batch of the second probe, while only one has run.

        The largest within reach up to `_STRIDE` times the first; where memory's bound allows none, a smaller one.
        """
        batches = {t.config.batch_size or 1 for t in ran}
        first, there = batches.pop(), np.unique(self.feasible.arrays.batch[candidates])
        if batches:
            return None
        above, below = there[(there > first) & (there <= _STRIDE * first)], there[there < first]
        if len(above) and above[-1] >= _NARROW * first:
            return float(above[-1])
        if len(below):
            return float(below[np.argmin(np.abs(below - first / _STRIDE))])
        return float(above[-1]) if len(above) else None

    def _step_to(self, goal: int, candidates: Mask, ran: Sequence[Trial]) -> int | None:
        """The config nearest to a goal, if it is nearer than any that has run."""
        distance = np.abs(self._points - self._points[goal]).sum(1)
        index = self.feasible.index
        nearest = min((float(distance[index[t.config]]) for t in ran if t.config in index), default=math.inf)
        step = int(np.argmin(np.where(candidates, distance, np.inf)))
        return step if distance[step] < nearest - _STEP else None


def expected_improvement(predicted: RatePrediction, best: float) -> Vector:
    """By how much each config is expected to beat `best`, in logarithms of the rate; falling short counts as nothing."""
    from scipy.special import ndtr  # a quarter of a second to load: an answer that is known needs none of it

    over = predicted.mean - best
    z = over / np.maximum(predicted.deviation, 1e-9)
    density = np.exp(-0.5 * np.square(z)) / math.sqrt(2 * math.pi)
    return np.asarray(over * ndtr(z) + predicted.deviation * density)


def _cheapest(improvement: Vector, candidates: Mask, share: Vector) -> int:
    """Of the configs whose promise is about the highest, one that takes a small share of memory, and little else."""
    places = np.flatnonzero(candidates & (improvement >= (1 - _NEAR) * improvement[candidates].max()))
    return int(places[np.argmin(np.round(10 * share[places]))])


def _readings(ran: Sequence[Trial]) -> _Readings:
    return tuple((t.config, t.measurement.samples_per_second) for t in ran)


def _ran(trials: Sequence[Trial]) -> list[Trial]:
    return [t for t in trials if t.measurement.outcome is Outcome.OK and t.measurement.samples_per_second]


def _log_points(arrays: ConfigArrays) -> Vector:
    """Configs as points, coordinates in octaves: batch, workers, queue, and what the workers are."""
    kind = _OTHER_KIND * arrays.processes
    return np.stack(
        [np.log2(arrays.batch), np.log2(arrays.workers), _QUEUE_WEIGHT * np.log2(arrays.queue + 2), kind], axis=1
    )
