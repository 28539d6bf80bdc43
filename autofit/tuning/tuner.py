"""Run a tune: describe the workload, search, and confirm the choice.

    TuneRequest ──> describe ──> space, baseline, study
                                      │
              ┌───────────────────────┴──────────────────────┐
              │  ask for a config ──> run it ──> tell        │   until the sampler stops,
              └───────────────────────┬──────────────────────┘   or trials or seconds run out
                                      │
                                  confirm ──> TuneRecord

This module prints nothing: the caller receives events.
"""

from __future__ import annotations

import time
from dataclasses import replace

from autofit.errors import AutofitError, NothingFitsError, StorageError, TuneError
from autofit.records.description import Description
from autofit.records.events import Activity, Described, Emit, Notice, TrialEnded
from autofit.records.result import TuneLog, TuneRecord
from autofit.records.states import Outcome
from autofit.records.trial import FitConfig, Trial
from autofit.records.units import format_bytes, format_seconds
from autofit.search.sampler import FrontierSampler
from autofit.storage import attributes
from autofit.storage.study import TuningStudy
from autofit.trial.launcher import Launcher
from autofit.tuning import record as tune_records
from autofit.tuning.budget import OWN_BATCH_TRIALS
from autofit.tuning.confirm import Confirmation
from autofit.tuning.failure import no_result_error
from autofit.tuning.prepare import (
    Prepared,
    describe,
    edge_notice,
    make_sampler,
    notices,
    of_one_size,
    of_own_steps,
    one_size_notice,
    own_steps_notice,
    prepare,
)
from autofit.tuning.request import TuneRequest
from autofit.tuning.runner import TrialRunner, require_user_code_ran


def tune(request: TuneRequest, launcher: Launcher, emit: Emit) -> TuneRecord:
    """Find the fastest config that fits, confirm it, and store the result."""
    tuning = _Tuning(request, launcher, emit)
    try:
        return tuning.run()
    except AutofitError as error:
        tuning.fail(error)
        raise
    finally:
        tuning.study.close()


class _Tuning:
    def __init__(self, request: TuneRequest, launcher: Launcher, emit: Emit) -> None:
        self._emit, self._started_at = emit, time.time()
        settings = request.settings
        self.study = TuningStudy(
            settings.storage,
            request.fingerprint(),
            request.limits,
            settings.options.max_trial_seconds,
            lambda text: emit(Notice(text)),
            fresh=request.fresh,
        )
        self._request = replace(request, limits=self.study.limits)
        if request.limits != self.study.limits:
            host, device = self.study.limits.host_bytes, self.study.limits.device_bytes
            most = f"{format_bytes(host)} of host memory" + (f", {format_bytes(device)} of device memory" if device else "")
            emit(Notice(f"your training ran out of memory with an earlier result: trials may take at most {most}"))
        self._runner = TrialRunner(self._request, launcher, emit)
        self._description: Description | None = None
        self._describing_seconds = 0.0
        self._confirmation: Confirmation | None = None
        self._too_slow: list[Trial] = []  # ended at max_seconds; not stored, as they may finish in a tune with more time

    def run(self) -> TuneRecord:
        request = self._request
        self.study.set_user_attributes(request.metadata())
        description = self._description = describe(self._runner)
        self._describing_seconds = self._runner.budget.seconds()
        self._forget_another_model(description)
        prepared, sampler, confirmation = self._prepare(description)
        earlier_trials = self.study.trials()
        self._announce(prepared, earlier_trials)
        while isinstance(ended := self._search(sampler, prepared, len(earlier_trials)), Description):
            description = self._description = ended  # the workload takes only one batch size, or one step in a call
            prepared, sampler, confirmation = self._prepare(description)
        has_finished = any(trial.measurement.outcome is Outcome.OK for trial in self.study.trials())
        if prepared.own_batch is not None and has_finished:
            own = replace(prepared, space=prepared.own_space)
            self._search(make_sampler(request, own), own, len(earlier_trials), OWN_BATCH_TRIALS)
        answers = confirmation.run()
        if answers is None:
            trials = (*self.study.trials(), *self._too_slow)
            space, baseline = prepared.space, prepared.baseline
            raise no_result_error(self._runner, trials, len(earlier_trials), description.compiler, baseline, space)
        edge = edge_notice(request, prepared, answers[0].config)
        if edge is not None:
            self._emit(edge)
        record = tune_records.record(request, self._log(), description, answers, ended)
        tune_records.store(self.study, request, record)
        return record

    def _prepare(self, description: Description) -> tuple[Prepared, FrontierSampler, Confirmation]:
        """Prepare a search and its confirmation; both use the stored trials that are in the space."""
        prepared = prepare(self._request, description, self.study)
        space, baseline = prepared.space, prepared.baseline
        self._runner.budget.has_two_answers = prepared.own_batch is not None
        self.study.is_allowed = lambda config: config in space or config == baseline
        sampler = make_sampler(self._request, prepared)
        confirmation = self._confirmation = Confirmation(self._runner, self.study, sampler.context, prepared)
        return prepared, sampler, confirmation

    def fail(self, error: AutofitError) -> None:
        """Add the record of the tune to an error. Store it as the result if nothing fits; else remove an empty study."""
        if isinstance(error, StorageError):
            return
        if isinstance(error, TuneError):
            error.tune = tune_records.failed_tune(self._log(), error)
        if isinstance(error, NothingFitsError) and error.tune is not None:
            tune_records.store(self.study, self._request, error.tune)
        elif not self.study.trials():
            self.study.remove()

    def _forget_another_model(self, description: Description) -> None:
        """Delete the stored trials if the model has changed even though its source code has not."""
        if self.study.attribute(attributes.MODEL) not in (None, description.fingerprint):
            self.study.reset()
            self.study.set_user_attributes(self._request.metadata())
            self._emit(Notice("the model or the shape of its data has changed; the trials of earlier tunes are deleted"))
        self.study.set_attribute(attributes.MODEL, description.fingerprint)

    def _announce(self, prepared: Prepared, earlier_trials: tuple[Trial, ...]) -> None:
        request, settings = self._request, self._request.settings
        self._emit(
            Described(
                prepared.description,
                request.limits,
                request.machine,
                request.placement.name,
                earlier_trials,
                settings.max_trials,
                settings.max_seconds,
                self._describing_seconds,
                tuple(prepared.space.knobs()),
            )
        )
        for notice in notices(request, prepared, len(self.study.stale)):
            self._emit(notice)

    def _search(self, sampler: FrontierSampler, prepared: Prepared, earlier: int, further: int = 0) -> str | Description:
        """Ask for trials, run and tell them; return why it stopped, or a description that restricts the space.

        If `further` is given, at most so many more trials run, at the own batch size, also in a tune that is resumed.
        """
        settings, budget, knobs = self._request.settings, self._runner.budget, prepared.space.knobs()
        before = len(self.study.trials())
        while True:
            sampler.trials = trials = (*self.study.trials(), *self._too_slow)
            most = min(before + len(self._too_slow), settings.max_trials) + further if further else settings.max_trials
            reason = sampler.decide(trials).stop_reason
            reason = reason or budget.stop_reason(trials, prepared.baseline, most, earlier, len(self._too_slow))
            if reason is not None:
                return reason
            config = self.study.ask(sampler, sampler.suggest)
            why = str(sampler.proposal)
            reserved = budget.reserved_seconds(trials, prepared.baseline)
            doing = f"trial {len(trials) + 1} of at most {most}" + ", at your own batch size" * bool(further)
            activity = Activity(doing, config, why=why, reserved_seconds=reserved)
            deadline_seconds = budget.trial_deadline_seconds(trials, prepared.baseline)
            measurement = self._runner.search_trial(config, trials, activity, deadline_seconds)
            timed_out = measurement.outcome is Outcome.TIMEOUT and not measurement.evidence.hung
            if timed_out and deadline_seconds < budget.most_trial_seconds:
                self._too_slow.append(Trial(config, measurement, why))
                if not reserved:
                    return budget.out_of_time()
                seconds = format_seconds(deadline_seconds)
                self._emit(Notice(f"{config}: ended after {seconds}, because max_seconds left no more time for this trial"))
                continue
            if measurement.outcome is Outcome.ERROR:
                failed = Trial(config, measurement, why)
                restricted = of_own_steps(self._request, prepared, failed)
                if restricted is not None:
                    self._emit(own_steps_notice(restricted))
                    return restricted
                if self._runs_with_baseline_batch(config, prepared):
                    restricted = of_one_size(prepared, failed)
                    self._emit(one_size_notice(restricted))
                    return restricted
            trial = self.study.tell(Trial(config, measurement, why), knobs)
            self._emit(TrialEnded(trial))
            require_user_code_ran(measurement)

    def _runs_with_baseline_batch(self, failed: FitConfig, prepared: Prepared) -> bool:
        """Return whether the user's code runs with the baseline's batch size, and with no other batch size so far.

        If no trial has finished, the baseline is run to find out. If the baseline is not in the user's space, it must not
        run, and the answer is False.
        """
        baseline = prepared.baseline
        if baseline.batch_size in (None, failed.batch_size) or baseline not in prepared.space:
            return False
        trials = self.study.trials()
        finished_sizes = {t.config.batch_size for t in trials if t.measurement.outcome is Outcome.OK}
        if finished_sizes:
            return finished_sizes == {baseline.batch_size}
        activity = Activity("your code failed; trying the baseline's batch size", baseline)
        measurement = self._runner.search_trial(baseline, trials, activity, self._runner.budget.deadline_seconds())
        if measurement.outcome is Outcome.OK:
            self._emit(TrialEnded(self.study.add(Trial(baseline, measurement, activity.doing), prepared.space.knobs())))
        return measurement.outcome is Outcome.OK

    def _log(self) -> TuneLog:
        """Return the log of everything that has run so far; `stage` is set in trials that ran after the search."""
        request = self._request
        runs = self._confirmation.runs if self._confirmation is not None else ()
        later = {run.number: run for run in runs}
        return TuneLog(
            limits=request.limits,
            machine=request.machine,
            device=request.placement.name,
            description=self._description,
            trials=tuple(later.get(trial.number, trial) for trial in self.study.trials()),
            runs=runs,
            seconds=self._runner.budget.seconds(),
            describing_seconds=self._describing_seconds,
            started_at=self._started_at,
            call_source=request.call_source,
            placement=request.placement,
            study=request.fingerprint(),
        )
