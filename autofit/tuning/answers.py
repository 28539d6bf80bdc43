"""Make the answers of a tune: the chosen configs with their figures.

A shown gain has the figures of the runs beside each other, a likely one those of all readings: the
reading that made a config the best is too high.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from autofit.records.intervals import pooled_half_width
from autofit.records.knobs import FitConfig
from autofit.records.result import Answer, Speedup
from autofit.records.states import Outcome, Stage
from autofit.records.trial import Trial
from autofit.search.rates import rated_trials
from autofit.tuning import claims
from autofit.tuning.delivery import baseline_outcome
from autofit.tuning.policy import Stop
from autofit.tuning.problem import Problem


def answer_of(
    problem: Problem,
    readings: Sequence[Trial],
    rounds: Sequence[claims.Round],
    stop: Stop,
    config: FitConfig,
) -> Answer:
    """Make the answer of a config that was chosen when the tune stopped."""
    assert stop.choice is not None
    beliefs = stop.choice.beliefs
    baseline = problem.baseline
    rated = rated_trials(readings)
    trials = [trial for trial in rated if trial.config == config]
    further = [trial for trial in trials if trial.stage is not Stage.SEARCH]
    measured = [trial.measurement for trial in trials]
    outcome = baseline_outcome(problem, readings)
    is_known = outcome is Outcome.OK and any(
        trial.config == baseline for trial in rated
    )
    is_other = is_known and config != baseline
    speedup = claims.speedup(config, baseline, rounds) or Speedup(baseline, outcome)
    counted = further or trials
    rate = statistics.median(trial.samples_per_second for trial in counted)
    spread = counted[0].measurement.spread
    logs = claims.log_rates(config, rounds)
    if is_other and not (speedup.is_shown or speedup.is_loss):
        rate, spread = beliefs.rate(config)
        speedup = beliefs.speedup(config, baseline)
    elif logs:
        # the median of the runs beside others
        rate = math.exp(statistics.median(logs))
        others = [
            claims.log_rates(each, rounds) for each in rounds[0] if each != config
        ]
        spread = math.expm1(pooled_half_width(logs, *others))
    if is_known and config == baseline:
        speedup = claims.speedup_of(baseline, 0.0, 0.0, speedup.pairs)
    return Answer(
        config=config,
        samples_per_second=rate,
        spread=spread,
        device_peak_bytes=max(m.device_peak_bytes or 0 for m in measured) or None,
        host_peak_bytes=max(m.host_peak_bytes or 0 for m in measured) or None,
        speedup=speedup,
        probability=beliefs.probability(config, baseline) if is_other else None,
        confirmed=bool(further),
        needed_seconds=stop.needed_seconds,
    )
