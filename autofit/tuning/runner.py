"""One trial, its phases shown as what is being done."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

from autofit.errors import AutofitError, NoTrialFinishedError, UserCodeError
from autofit.records.events import Activity, Event
from autofit.records.trial import Description, Measurement, Outcome, TrialSpec
from autofit.trial.launcher import Launcher


def run_trial(spec: TrialSpec, launcher: Launcher, activity: Activity) -> Generator[Event, None, Measurement | Description]:
    """Run one trial of any role; returns what it reports."""
    yield activity
    running = launcher.run(spec)
    try:
        while True:
            try:
                phase = next(running)
            except StopIteration as end:
                result: Measurement | Description = end.value
                return result
            yield replace(activity, phase=phase)
    finally:
        running.close()


def why_not_described(ended: Measurement) -> AutofitError:
    """The error for a describing trial that did not come to a description, for another reason than memory."""
    if ended.outcome is Outcome.ERROR:
        return user_error(ended)
    return NoTrialFinishedError(f"the model and the data could not be built: {ended.evidence.reason}")


def user_error(ended: Measurement) -> UserCodeError:
    """The error for a trial in which the user's code raised."""
    return UserCodeError(ended.evidence.phase or "starting", ended.traceback or ended.evidence.reason)
