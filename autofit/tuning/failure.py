"""Why a tune has no answer: nothing fits, and what the smallest config needs; or nothing ran to its end."""

from __future__ import annotations

from collections.abc import Callable, Generator

from autofit.errors import NothingFitsError, NoTrialFinishedError
from autofit.records.events import Activity, Event
from autofit.records.trial import Limits, Measurement, Outcome, Trial, TrialSpec
from autofit.search.space import cost
from autofit.tuning.budget import SEARCH_SECONDS, Budget
from autofit.tuning.request import TuneRequest

_LIFTED_HOST_SHARE = 0.95

RunSpec = Callable[[TrialSpec, Activity], Generator[Event, None, Measurement]]


def infeasible_error(
    request: TuneRequest, budget: Budget, trials: tuple[Trial, ...], kept: int, run: RunSpec
) -> Generator[Event, None, NothingFitsError | NoTrialFinishedError]:
    """The error that says why none of the trials, so many of them `kept` of an earlier tune, ran to its end."""
    ooms = [trial for trial in trials if trial.measurement.outcome.is_oom]
    if ooms:
        return (yield from measure_smallest(request, budget, min(ooms, key=lambda trial: cost(trial.config)), run))
    tally = {o.value: sum(t.measurement.outcome is o for t in trials) for o in Outcome}
    counts = ", ".join(f"{count} {name}" for name, count in tally.items() if count) or "none was started"
    last = trials[-1].measurement.evidence.reason if trials else "no trial was run"
    earlier = f"; {kept} of them earlier, which --fresh forgets" if kept else ""
    return NoTrialFinishedError(f"no trial ran to its end ({counts}{earlier}); the last one: {last}")


def measure_smallest(
    request: TuneRequest, budget: Budget, smallest: Trial, run: RunSpec
) -> Generator[Event, None, NothingFitsError]:
    """Run the smallest config, which did not fit, with the limits lifted; returns the error that says what it needs."""
    memory = "device" if smallest.measurement.outcome is Outcome.DEVICE_OOM else "host"
    limit = (request.limits.device_bytes or 0) if memory == "device" else request.limits.host_bytes
    most = request.device.free_bytes if request.device else request.machine.available_bytes
    lifted = Limits(
        most if request.limits.device_bytes else None, round(_LIFTED_HOST_SHARE * request.machine.available_bytes)
    )
    spec = TrialSpec("measure", smallest.config, lifted, budget.deadline_seconds(), SEARCH_SECONDS)
    measurement = yield from run(spec, Activity("what the smallest batch needs", smallest.config))
    peak = measurement.device_peak_bytes if memory == "device" else measurement.host_peak_bytes
    known = smallest.measurement.device_peak_bytes if memory == "device" else smallest.measurement.host_peak_bytes
    failed = measurement.outcome is not Outcome.OK
    return NothingFitsError(memory, smallest.config.batch_size, peak or known or limit, limit, at_least=failed)
