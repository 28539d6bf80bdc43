"""Run trials of the configs that the user names; search and store nothing."""

from __future__ import annotations

from collections.abc import Sequence

from autofit.records.events import Activity, Emit, TrialEnded
from autofit.records.trial import FitConfig, Trial
from autofit.trial.launcher import Launcher
from autofit.tuning.request import TuneRequest
from autofit.tuning.runner import TrialRunner, require_user_code_ran


def measure(request: TuneRequest, launcher: Launcher, emit: Emit, configs: Sequence[FitConfig]) -> tuple[Trial, ...]:
    """Run each config once, as the search does.

    Raises:
        UserCodeError: the user's code raised.
    """
    runner, trials = TrialRunner(request, launcher, emit), []
    for number, config in enumerate(configs, 1):
        measurement = runner.measure(config, Activity(f"trial {number} of {len(configs)}", config))
        trials.append(Trial(config, measurement))
        emit(TrialEnded(trials[-1]))
        require_user_code_ran(measurement)
    return tuple(trials)
