"""From the trials of a search to a choice that is proven: the finalists' race, the confirmation, and what fails in them.

What ran here is kept with the study as it ends, so that a tune that is killed now goes on where it was.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace

from autofit.records.events import Activity, Event, Notice, TrialEnded
from autofit.records.result import ConfirmingRun, Recommendation
from autofit.records.trial import INPUT_BOUND, Description, FitConfig, Measurement, Outcome, Trial, TrialSpec
from autofit.records.units import format_rate
from autofit.search import selection
from autofit.search.sampler import FrontierSampler
from autofit.storage.study import TuningStudy
from autofit.tuning import record as records
from autofit.tuning.budget import CONFIRM_SECONDS, Budget
from autofit.tuning.confirmation import FailedConfirmation, confirm, rerun_finalists
from autofit.tuning.request import TuneRequest
from autofit.tuning.runner import user_error

RunSpec = Callable[[TrialSpec, Activity], Generator[Event, None, Measurement]]
SpecOf = Callable[[FitConfig, Sequence[Trial]], TrialSpec]


class Confirmation:
    """Chooses among the trials of a study, and runs the choice against the baseline.

    Args:
        question: what is asked.
        study: with the trials of the search; what fails here is added to it.
        sampler: that proposed them; knows what is to be thought of their rates.
        budget: what may be spent.
        run: runs a trial.
        spec_of: how a trial of the search measures a config.
    """

    def __init__(
        self,
        request: TuneRequest,
        study: TuningStudy,
        sampler: FrontierSampler,
        budget: Budget,
        run: RunSpec,
        spec_of: SpecOf,
    ) -> None:
        self._request, self._study, self._sampler, self._budget = request, study, sampler, budget
        self._run, self._spec_of = run, spec_of
        trials = [t for t in study.trials() if t.measurement.outcome is not Outcome.OK]
        failed = {(trial.config, trial.measurement.started_at) for trial in trials}
        before = records.kept_runs(study)
        self._before = [run for run in before if run.trial.fits(request.limits)]  # others would end otherwise now, or did
        self.runs = tuple(
            run
            for run in before
            if run not in self._before and (run.trial.config, run.trial.measurement.started_at) in failed
        )

    def prove(
        self, description: Description, baseline: FitConfig, *, may_win: bool
    ) -> Generator[Event, None, Recommendation | None]:
        """The choice, confirmed; None where no trial is left to choose.

        Raises:
            UserCodeError: the user's code raised.
        """
        study = self._study
        while True:
            count = len(study.trials())
            chosen = yield from self._choose()
            if chosen is None:
                if len(study.trials()) > count:
                    continue
                return None
            proof = functools.partial(self._confirmed, description, baseline, may_win=may_win)
            verdict = yield from proof(chosen)
            if isinstance(verdict, FailedConfirmation):
                study.add(verdict.trial, self._sampler.distributions)
                continue
            rival = yield from self._rival(verdict)
            second = verdict if rival is None else (yield from proof(rival))
            if isinstance(second, FailedConfirmation):
                study.add(second.trial, self._sampler.distributions)
                return verdict
            return max(verdict, second, key=lambda found: found.samples_per_second)

    def _confirmed(
        self, description: Description, baseline: FitConfig, chosen: Trial, *, may_win: bool
    ) -> Generator[Event, None, Recommendation | FailedConfirmation]:
        request = self._request
        return (
            yield from confirm(
                chosen,
                baseline,
                functools.partial(self._confirming_run, chosen),
                self._budget.rounds(chosen),
                may_win=may_win,
                tolerance=request.tolerance,
                may_shrink="batch_size" in description.validation_knobs or request.usage.validation_form == "arrays",
            )
        )

    def _rival(self, verdict: Recommendation) -> Generator[Event, None, Trial | None]:
        """A config that read far more than the choice was confirmed at, and does so again: the choice was a mistake."""
        request, trials, rate = self._request, self._study.trials(), verdict.samples_per_second
        rival = selection.overlooked(trials, request.limits, verdict.config, rate, (verdict.spread or 0.0) / 2)
        if rival is None or not self._budget.allows_reruns(trials, 1):
            return None
        yield Notice(f"the choice was confirmed at {format_rate(rate)} samples/s, far below another trial: that runs again")
        again = yield from self._rerun(trials, rival.config, Activity("comparing again", rival.config))
        yield TrialEnded(Trial(rival.config, again), "finalist")
        if again.outcome is not Outcome.OK:
            self._study.add(Trial(rival.config, again), self._sampler.distributions)
            return None
        both = math.sqrt((again.samples_per_second or 0.0) * (rival.measurement.samples_per_second or 0.0))
        return rival if both > (1 + request.tolerance) * rate else None

    def _choose(self) -> Generator[Event, None, Trial | None]:
        """The trial to confirm, after a race where noise leaves it open; None when none is left, or a finalist failed."""
        request, trials = self._request, self._study.trials()
        thoughts = self._sampler.proposer.rates(trials)
        last = selection.finalists(trials, request.limits, request.tolerance, thoughts)
        if len(last) < 2 or not self._budget.allows_reruns(trials, len(last)):
            return last[-1] if last else None
        rates = yield from rerun_finalists(last, thoughts, functools.partial(self._rerun, trials))
        if isinstance(rates, FailedConfirmation):
            self._study.add(rates.trial, self._sampler.distributions)
            return None
        return selection.choose(last, request.limits, request.tolerance, rates)

    def _rerun(self, trials: Sequence[Trial], config: FitConfig, activity: Activity) -> Generator[Event, None, Measurement]:
        spec = replace(self._spec_of(config, trials), rate_to_beat=None)
        return (yield from self._run_again(spec, activity, "finalist"))

    def _confirming_run(
        self, chosen: Trial, config: FitConfig, activity: Activity, validation_batch_size: int | None
    ) -> Generator[Event, None, Measurement]:
        known = [t.measurement for t in self._study.trials() if t.config == config and t.measurement.samples_per_second]
        rate = known[0] if known else chosen.measurement
        spec = TrialSpec(
            role="confirm",
            config=config,
            limits=self._request.limits,
            deadline_seconds=self._budget.confirming_deadline_seconds(rate),
            measure_seconds=CONFIRM_SECONDS,
            validation_batch_size=validation_batch_size,
            input_bound=(rate.input_samples_per_second or 0) < INPUT_BOUND * (rate.compute_samples_per_second or 0),
        )
        return (yield from self._run_again(spec, activity, "chosen" if config == chosen.config else "baseline"))

    def _run_again(self, spec: TrialSpec, activity: Activity, stage: str) -> Generator[Event, None, Measurement]:
        """Run what has run in the search, or take over the run of a tune that was ended; an error is not the config's."""
        asked = stage, spec.config, spec.validation_batch_size
        run = next((r for r in self._before if (r.stage, r.trial.config, r.validation_batch_size) == asked), None)
        if run is not None:
            self._before.remove(run)
        else:
            measurement = yield from self._run(spec, activity)
            if measurement.outcome is Outcome.ERROR:
                raise user_error(measurement)
            run = ConfirmingRun(stage, Trial(spec.config, measurement), spec.validation_batch_size)
        self.runs = (*self.runs, run)
        records.keep_runs(self._study, (*self.runs, *self._before))
        return run.trial.measurement
