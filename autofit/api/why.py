"""Say where the time of an epoch goes, by running the first trials of a tune or by a saved one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autofit.api.session import parse, run
from autofit.records.epoch import EpochRecord
from autofit.records.events import Emit
from autofit.records.result import TuneRecord
from autofit.report.console.progress import Progress
from autofit.trial.launcher import Launcher
from autofit.tuning.request import TuneRequest


def run_why(arguments: Mapping[str, Any], progress: bool | Progress) -> EpochRecord:
    """Run the first trials of what the arguments of `tune` describe, and explain an epoch."""

    def first_trials(
        request: TuneRequest, launcher: Launcher, emit: Emit
    ) -> EpochRecord:
        from autofit.tuning import why  # loads Optuna and SciPy

        return why.why(request, launcher, emit)

    return run(first_trials, *parse(arguments), progress)


def explain(record: TuneRecord) -> EpochRecord:
    """Explain an epoch by the trials of a saved tune; raise UsageError if it has none."""
    from autofit.tuning import remedies  # loads SciPy

    return remedies.explain_saved(record)
