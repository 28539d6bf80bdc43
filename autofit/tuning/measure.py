"""Trials of configs that the user names, one after the other; nothing is searched and nothing is stored.

A generator like the loop in `tuner`: whoever draws it shows the events; nothing here prints.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from autofit.records.events import Activity, Event, TrialEnded
from autofit.records.trial import FitConfig, Measurement, Outcome, Trial, TrialSpec
from autofit.trial.launcher import Launcher
from autofit.tuning.budget import SEARCH_SECONDS
from autofit.tuning.request import TuneRequest
from autofit.tuning.runner import run_trial, user_error


def measure(
    request: TuneRequest, launcher: Launcher, configs: Sequence[FitConfig]
) -> Generator[Event, None, tuple[Trial, ...]]:
    """Run each config once, as a trial of the search would.

    Raises:
        UserCodeError: the user's code raised.
    """
    trials = []
    for number, config in enumerate(configs, 1):
        spec = TrialSpec(
            "measure",
            config,
            request.limits,
            request.max_trial_seconds,
            SEARCH_SECONDS,
            effective_batch_size=request.effective_batch_size,
        )
        measurement = yield from run_trial(spec, launcher, Activity(f"trial {number} of {len(configs)}", config))
        assert isinstance(measurement, Measurement), "only a describing trial returns a description"
        trials.append(Trial(config, measurement))
        yield TrialEnded(trials[-1], "search")
        if measurement.outcome is Outcome.ERROR:
            raise user_error(measurement)
    return tuple(trials)
