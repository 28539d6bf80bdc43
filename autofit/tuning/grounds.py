"""Why the choice is not the config with the highest reading of all runs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from autofit.records.result import DecidedBy, Grounds, RateEstimate
from autofit.records.states import Outcome, Stage
from autofit.records.trial import FitConfig, Limits, Trial


def grounds(
    choice: FitConfig,
    ran: Sequence[Trial],
    limits: Limits,
    tolerance: float,
    estimates: Mapping[FitConfig, RateEstimate],
    reruns: Mapping[FitConfig, RateEstimate],
    no_time: Collection[FitConfig] = (),
) -> Grounds | None:
    """What decided against the config with the highest reading; None if the choice has it.

    Args:
        choice: the chosen config.
        ran: all trials of the search and all runs after it.
        limits: under which a trial fits.
        tolerance: relative gain below which configs count as equally fast.
        estimates: the rates that the trials of the search predict.
        reruns: the same, updated by the repeated runs of finalists.
        no_time: configs that could not be confirmed in the time left.
    """
    readings = [trial for trial in ran if _rate(trial)]
    highest = max(readings, key=_rate, default=None)
    if highest is None or _rate(highest) <= max((_rate(t) for t in readings if t.config == choice), default=0.0):
        return None
    config = highest.config
    decided_by, known = DecidedBy.ESTIMATE, estimates
    if not all(trial.fits(limits) for trial in ran if trial.config == config):
        decided_by = DecidedBy.FAILURE
    elif _was_confirmed(config, ran) and _was_confirmed(choice, ran):
        decided_by = DecidedBy.CONFIRMATION
    elif config in no_time:
        decided_by = DecidedBy.TIME
    elif config in reruns:
        decided_by, known = DecidedBy.RERUNS, {**estimates, **reruns}
    by_estimate = decided_by in (DecidedBy.ESTIMATE, DecidedBy.RERUNS)
    return Grounds(
        passed_over=config,
        reading_samples_per_second=_rate(highest),
        stage=highest.stage,
        decided_by=decided_by,
        tolerance=tolerance,
        estimate=known.get(config) if by_estimate else None,
        chosen_estimate=known.get(choice) if by_estimate else None,
    )


def _rate(trial: Trial) -> float:
    return (trial.measurement.samples_per_second or 0.0) if trial.measurement.outcome is Outcome.OK else 0.0


def _was_confirmed(config: FitConfig, ran: Sequence[Trial]) -> bool:
    return any(trial.config == config and trial.stage in (Stage.CHOSEN, Stage.BASELINE) and _rate(trial) for trial in ran)
