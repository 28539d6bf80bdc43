"""Race the chosen batch size against the baseline: which reaches the same loss sooner, with its own learning rate?

    baseline ─> checkpoint ─┬─> baseline, seed 1 ─> chosen, seed 1 ─> alternative, seed 1
                            └─> seed 2, in reverse order, … until the intervals decide or the seconds are used up

Each training is stored when it ends, so a tune that was killed goes on with the next one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pydantic import TypeAdapter, ValidationError

from autofit.errors import TrialProcessError, UsageError
from autofit.records.events import Activity, Notice
from autofit.records.intervals import paired_sequential_interval
from autofit.records.noise import NoiseScale
from autofit.records.race import Contestant, Heat, Race
from autofit.records.result import SHOWING_PAIRS, TuneRecord
from autofit.records.states import Outcome
from autofit.records.trial import CURVE_POINTS, FitConfig, HeatSpec, LossPoint
from autofit.records.units import format_seconds
from autofit.storage import attributes
from autofit.storage.study import TuningStudy
from autofit.tuning.budget import confirming_seconds
from autofit.tuning.pairs import MOST_PAIRS
from autofit.tuning.runner import TrialRunner

_CHECKPOINT = "race.npz"
_PLANNED_PAIRS = 3  # of trainings for which the seconds of each are planned
_EVALUATING_RATIO = 0.5  # seconds of evaluating a training's losses / seconds of training it, at most (assumed)
_LEAST_CALLS, _MOST_SNAPSHOTS = 32, 8  # calls of the train function in a training; weights averaged for a point
_LEAST_UPDATES = 50  # of the baseline in a training: a curve over fewer says nothing
_LEAST_SECONDS = 2.0
_LEAST_SAMPLES, _MOST_SAMPLES = 256, 16_384  # held out
_HEATS = TypeAdapter(tuple[Heat, ...])


def run(runner: TrialRunner, study: TuningStudy, record: TuneRecord) -> Race:
    """Race the chosen config, and that of the other objective, against the baseline; a failure is the race's reason."""
    try:
        return _Race(runner, study, record).run()
    except (UsageError, TrialProcessError) as error:
        return Race(reason=str(error))


def keeps_baseline(race: Race, config: FitConfig) -> bool:
    """Return whether a race was run for a config and did not show that it reaches the same loss sooner."""
    raced = [contestant for contestant in race.contestants if contestant.config == config and contestant.ratio is not None]
    return bool(raced) and not raced[0].is_sooner


class _Race:
    def __init__(self, runner: TrialRunner, study: TuningStudy, record: TuneRecord) -> None:
        self._runner, self._study, self._record = runner, study, record
        self._baseline = record.speedup.baseline
        self._began = runner.budget.seconds()
        picked = [config for config in (record.alternative, record.config) if config is not None]
        by_size = {config.batch_size: config for config in picked if config.batch_size != self._baseline.batch_size}
        self._others = tuple(sorted(by_size.values(), key=lambda config: config != record.config))
        try:
            self._heats = list(_HEATS.validate_python(study.attribute(attributes.HEATS) or []))
        except ValidationError:
            self._heats = []
        self._heat_seconds, self._updates, self._held_out, self._snapshots = 0.0, 0, 0, 1

    def run(self) -> Race:
        """Train all contestants in pairs until each is decided."""
        if problem := self._obstacle():
            return Race(reason=problem)
        if problem := self._make_checkpoint():
            return Race(reason=problem)
        pair = 0
        while pair < MOST_PAIRS and self._needs_pair(pair):
            pair += 1
            order = (self._baseline, *(each.config for each in self._contestants() if not each.problem))
            for config in order if pair % 2 else order[::-1]:
                self._heat(config, pair)
        return Race(
            tuple(self._contestants()),
            tuple(self._heats),
            self._heat_seconds,
            self._updates,
            self._held_out,
            seconds=self._runner.budget.seconds() - self._began,
        )

    def _obstacle(self) -> str:
        """Return why nothing can be raced, after the seconds of each training are planned; an empty text if all can."""
        record, request = self._record, self._runner.request
        if not self._others:
            return "the chosen batch size is the baseline's"
        if request.placement.count > 1:
            return "trainings are raced on one device only"
        if record.description.keras != "keras":
            return f"it needs Keras 3, not {record.description.keras}"
        asked = request.settings.race_seconds or 0.0
        seconds, count = min(asked, self._runner.budget.seconds_left()), 1 + len(self._others)
        trials = (*record.trials, *record.runs)
        around = max(confirming_seconds(config, trials) for config in (self._baseline, *self._others))
        heats = 1 + _PLANNED_PAIRS * count
        self._heat_seconds = (seconds / heats - around) / (1 + _EVALUATING_RATIO)
        rate = self._rate(self._baseline) or 0.0
        updates = _LEAST_UPDATES * (self._baseline.batch_size or 1) / rate if rate else 0.0
        call = max(map(self._call_seconds, (self._baseline, *self._others)))
        least = max(_LEAST_SECONDS, updates, _LEAST_CALLS * call)
        if self._heat_seconds < least:
            needed = format_seconds(heats * (around + least * (1 + _EVALUATING_RATIO)))
            return f"{heats} trainings of {format_seconds(least)} or more take about {needed}; raise race_seconds"
        within = _EVALUATING_RATIO * self._heat_seconds * rate / (1 + CURVE_POINTS)
        self._held_out = int(min(_MOST_SAMPLES, max(_LEAST_SAMPLES, within)))
        self._snapshots = min(_MOST_SNAPSHOTS, int(self._heat_seconds / CURVE_POINTS / call)) if call else _MOST_SNAPSHOTS
        return ""

    def _call_seconds(self, config: FitConfig) -> float:
        """Return how long a call of the train function takes, in seconds; 0 if its rate is unknown."""
        rate = self._rate(config)
        return (config.batch_size or 1) * (config.steps_per_execution or 1) / rate if rate else 0.0

    def _make_checkpoint(self) -> str:
        """Train the baseline to the checkpoint; return why it failed, or an empty text."""
        measurement = self._runner.heat(
            self._baseline,
            HeatSpec(keeps=_CHECKPOINT, baseline=self._baseline.batch_size or 1),
            Activity("training to the start of the race", self._baseline),
            self._heat_seconds,
            self._baseline.batch_size,
        )
        if measurement.outcome is not Outcome.OK or not measurement.losses:
            return measurement.evidence.reason
        self._updates = measurement.losses[-1].updates
        return ""

    def _needs_pair(self, done: int) -> bool:
        """Return whether a further pair can decide something, and there is time for it."""
        if not done:
            return True
        if all(contestant.is_sooner or contestant.is_later or contestant.problem for contestant in self._contestants()):
            return False
        if done < SHOWING_PAIRS:
            return True
        spent = self._runner.budget.seconds() - self._began
        left = min((self._runner.request.settings.race_seconds or 0.0) - spent, self._runner.budget.seconds_left())
        return spent / (done * (1 + len(self._others)) + 1) * (1 + len(self._others)) <= left

    def _heat(self, config: FitConfig, pair: int) -> None:
        if any(heat.config == config and heat.pair == pair for heat in self._heats):
            return
        factor, beta_2 = learning_of(self._record, config)
        spec = HeatSpec(
            seed=pair,
            start=_CHECKPOINT,
            learning_rate_factor=factor,
            beta_2=beta_2,
            updates=self._updates,
            baseline=self._baseline.batch_size or 1,
            held_out_samples=self._held_out,
            snapshots=self._snapshots,
        )
        name = "the baseline" if config == self._baseline else f"batch {config.batch_size}"
        activity = Activity(f"racing {name}, pair {pair} of at most {MOST_PAIRS}", config)
        measurement = self._runner.heat(config, spec, activity, self._heat_seconds, self._baseline.batch_size)
        problem = "" if measurement.outcome is Outcome.OK else measurement.evidence.reason
        self._heats.append(Heat(config, pair, measurement.losses, problem))
        self._study.set_attribute(attributes.HEATS, _HEATS.dump_python(tuple(self._heats), mode="json"))
        if problem:
            self._runner.emit(Notice(f"{config}: a training of the race failed: {problem}"))

    def _contestants(self) -> Iterator[Contestant]:
        """Yield each other config with what its pairs so far say."""
        before, *others = (
            {heat.pair: heat for heat in self._heats if heat.config == config} for config in (self._baseline, *self._others)
        )
        for config, now in zip(self._others, others, strict=True):
            pairs = [(before[pair], now[pair]) for pair in sorted(before.keys() & now.keys())]
            yield compared(Contestant(config, *learning_of(self._record, config)), pairs)

    def _rate(self, config: FitConfig) -> float | None:
        rates = [t.measurement.samples_per_second for t in (*self._record.trials, *self._record.runs) if t.config == config]
        return max(filter(None, rates), default=None)


def learning_of(record: TuneRecord, config: FitConfig) -> tuple[float, float | None]:
    """Return the factor of the learning rate and the β₂ for a config, by the noise scale; 1 and None without one."""
    scale: NoiseScale | None = record.noise_scale
    if scale is not None and scale.value is None and scale.low is not None:
        scale = replace(scale, value=scale.low, high=scale.low)
    before, now = record.speedup.baseline.batch_size, config.batch_size
    if scale is None or scale.value is None or not before or not now or now == before:
        return 1.0, None
    changed = replace(record, noise_scale=scale, choice=replace(record.choice, config=config)).learning_kwargs
    return scale.learning_rate_factor(now, before), changed.get("beta_2")


def compared(contestant: Contestant, pairs: Sequence[tuple[Heat, Heat]]) -> Contestant:
    """Return a contestant with what pairs of trainings say, each of the baseline and of the contestant."""
    for before, now in pairs:  # the loss of one checkpoint may differ in its last digits
        start = min((heat.points[0].loss for heat in (before, now) if heat.points and heat.points[0].loss), default=None)
        if problem := now.problem or _no_progress(now.points, start):
            return replace(contestant, pairs=len(pairs), problem=problem)
        if problem := before.problem or _no_progress(before.points, start):
            return replace(contestant, pairs=len(pairs), problem=f"the baseline: {problem}")
    if not pairs:
        return contestant
    rates = [_samples_a_second(now) / _samples_a_second(before) for before, now in pairs]
    read = replace(contestant, rate_ratio=statistics.median(rates))
    return decided(read, [lead(before.points, now.points) for before, now in pairs])


def decided(contestant: Contestant, leads: Sequence[float]) -> Contestant:
    """Return a contestant with the ratio that the leads of its pairs give it, and its interval."""
    mean, half_width = paired_sequential_interval(leads)
    ends = (math.exp(mean - half_width), math.exp(mean + half_width)) if math.isfinite(half_width) else (None, None)
    return replace(contestant, ratio=math.exp(mean), low=ends[0], high=ends[1], pairs=len(leads))


def lead(before: Sequence[LossPoint], now: Sequence[LossPoint]) -> float:
    """Return the logarithm of how many times sooner the second curve reaches the lowest loss that both reach."""
    common = max(_lowest(before), _lowest(now))
    return math.log(seconds_to(before, common) / seconds_to(now, common))


def seconds_to(points: Sequence[LossPoint], loss: float) -> float:
    """Return when a curve first reaches a loss that it does reach, in seconds; linear between its points."""
    earlier = points[0]
    for point in points[1:]:
        if point.loss is not None and point.loss <= loss:
            assert earlier.loss is not None
            share = (earlier.loss - loss) / (earlier.loss - point.loss) if earlier.loss > point.loss else 1.0
            return earlier.seconds + max(0.0, share) * (point.seconds - earlier.seconds)
        if point.loss is not None:
            earlier = point
    raise ValueError(f"the loss {loss:g} is not reached")


def _lowest(points: Sequence[LossPoint]) -> float:
    return min(point.loss for point in points[1:] if point.loss is not None)


def _no_progress(points: Sequence[LossPoint], start: float | None) -> str:
    """Return a sentence if the loss does not fall below that of the checkpoint; an empty text if it does."""
    losses = [point.loss for point in points[1:] if point.loss is not None]
    if start is None or not losses:
        return "its loss is not a finite number"
    return "" if min(losses) < start else "its loss did not fall below that of the checkpoint"


def _samples_a_second(heat: Heat) -> float:
    first, last = heat.points[0], heat.points[-1]
    return (last.updates - first.updates) * (heat.config.batch_size or 1) / last.seconds
