"""The engine: describe the workload, search, confirm, and store the result.

    TuneRequest ── describe ──> Problem ──> search ──> search at the baseline's batch size ──> confirm ──> TuneRecord

The baseline is the user's present config. There are two answers: the fastest config with the baseline's batch size, so that
training makes the same updates, and the fastest of all. (If only one batch size is searched, they are one, and the second
search is left out.)

    search   ask the sampler for a config ──> run it in a process ──> store it; until the sampler has nothing better to
             propose, or trials or seconds run out
    confirm  rounds of longer runs of the baseline and of the configs that are likely to be faster, until each of these is
             proven to be faster, or given up
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from autofit.errors import AutofitError, TuneError
from autofit.records.description import Description
from autofit.records.events import Activity, Described, Emit
from autofit.records.result import FailedTune, TuneLog, TuneRecord
from autofit.records.states import Outcome
from autofit.records.trial import KERAS_DEFAULTS, Measurement, Trial
from autofit.records.units import format_rate
from autofit.search.frontier import FrontierSearch, LargestBatch
from autofit.search.sampler import BoundedSampler, FrontierSampler
from autofit.storage import result_files
from autofit.storage.study import TuningStudy
from autofit.trial.launcher import Launcher
from autofit.tuning.budget import OWN_BATCH_TRIALS
from autofit.tuning.confirm import Confirmation
from autofit.tuning.problem import Problem, build_problem, notices
from autofit.tuning.record import no_result_error, nothing_fits_error, record_of
from autofit.tuning.request import TuneRequest
from autofit.tuning.runner import TrialRunner, not_described, raise_user_error
from autofit.tuning.settings import LARGEST

_ESTIMATED_BATCHES = (
    1,
    4,
    16,
    64,
)  # memory is estimated for these multiples of the baseline's batch size


def tune(request: TuneRequest, launcher: Launcher, emit: Emit) -> TuneRecord:
    """Find the fastest config that fits, confirm it, and store the result."""
    engine = _Engine(request, launcher, emit)
    try:
        return engine.run()
    except AutofitError as error:
        engine.fail(error)
        raise
    finally:
        engine.study.close()


# What happens when
#
#   a trial runs out of memory   it is recorded like any other; the sampler proposes nothing that would take as much
#   the user's code raises       with the baseline, the tune ends with the traceback. Otherwise the search leaves out what
#                                is like it: the same kind of workers, several steps in a call, or batch sizes without a
#                                divisor that all sizes have which ran
#   a trial hangs or crashes     it is recorded, and counts in this tune only: a later one may try its config again
#   `max_seconds` is reached     the trial that runs is ended. The search stops early enough to confirm; an answer that
#                                could not be confirmed says so, and which `max_seconds` would do
#   Ctrl-C or kill               the trial that runs is lost. All others were stored when they ended: the next tune of the
#                                same request continues with what they read, and uses the confirming runs again
#   a confirming run fails       its config is excluded; the next best one is confirmed
#   nothing fits                 `NothingFitsError` is raised; the trials are stored, so that a later tune only describes
class _Engine:
    def __init__(self, request: TuneRequest, launcher: Launcher, emit: Emit) -> None:
        self._emit, self._started_at = emit, time.time()
        storage, fresh = request.settings.storage, request.settings.options.fresh
        self.study = TuningStudy(storage, request.fingerprint(), request.limits, emit, fresh=fresh)
        # which a result that failed has lowered
        self._request = replace(request, limits=self.study.limits, lowered=self.study.lowered)
        self._runner = TrialRunner(self._request, launcher, emit)
        self._description: Description | None = None
        self._describing_seconds = 0.0
        self._runs: list[Trial] = []  # after the search

    def run(self) -> TuneRecord:
        problem = self._describe()
        stop_reason = self._search(problem)
        if problem.own_batch is not None and any(
            trial.samples_per_second for trial in self.study.trials()
        ):
            self._search(problem, at_own_batch=True)

        answers = Confirmation(problem, self._runner, self.study, self._runs).run()
        if answers is None:
            for trial in self.study.trials():
                raise_user_error(trial.measurement)
            raise no_result_error(problem, self._runner.budget, self.study.trials(), stop_reason)
        record = record_of(problem, self._log(), answers, stop_reason)
        self.study.set_attribute(self._request.result_key(), result_files.encode(record))
        self.study.set_attribute(result_files.RUNS, [])
        both = {"at your batch": record.same_batch, "fastest": record.fastest}
        texts = {
            name: f"{a.config}: {format_rate(a.samples_per_second)} samples/s"
            for name, a in both.items()
            if a
        }
        self.study.set_labels(texts)
        return record

    def _search(self, problem: Problem, *, at_own_batch: bool = False) -> str:
        """Search until there is a reason to stop, and return it; at the baseline's batch size, beyond `max_trials`."""
        study, budget, settings, space, where = (
            self.study,
            self._runner.budget,
            self._request.settings,
            problem.space,
            "",
        )
        max_trials = settings.max_trials
        own_trials = 0 if at_own_batch else OWN_BATCH_TRIALS
        if at_own_batch:
            max_trials, where = (
                min(len(study.trials()), max_trials) + OWN_BATCH_TRIALS,
                ", at your own batch size",
            )
            space = replace(space, batch_size=(problem.baseline.batch_size,))
        arguments = {"baseline": problem.baseline, **vars(problem.context)}
        if settings.options.sampler is None:
            search = LargestBatch if settings.batch_size == LARGEST else FrontierSearch
            sampler = FrontierSampler(space, search=search, **arguments)
        else:
            sampler = BoundedSampler(settings.options.sampler, space, **arguments)
        while True:
            sampler.trials = trials = study.trials()
            seconds = budget.trial_seconds(trials, problem, own_trials)
            sampler.search.is_short = budget.is_short(trials, problem, own_trials)
            stop_reason = sampler.decide(trials).stop_reason or budget.stop_reason(
                trials, max_trials, seconds
            )
            if stop_reason is not None:
                return stop_reason

            config = study.ask(sampler, sampler.suggest)
            doing = f"trial {len(trials) + 1} of at most {max_trials}{where}"
            activity = Activity(doing, config, why=str(sampler.proposal))
            trial = self._runner.measure(config, activity, trials, deadline_seconds=seconds)

            self._emit(study.add(trial, problem.space.knobs(), is_asked=True))
            if config == problem.baseline:
                raise_user_error(trial.measurement)
            if trial.measurement.outcome is Outcome.ERROR:
                reason = trial.measurement.evidence.reason.strip()
                self._emit(
                    f"your code fails with {config} ({reason}); what only this configuration has is left out"
                )

    def _describe(self) -> Problem:
        """Describe the workload with the baseline's batch size or, if that does not fit, with one sample on each device."""
        request, runner, asked = self._request, self._runner, self._request.asked_baseline
        usual = asked.batch_size or KERAS_DEFAULTS.batch_size or 1
        described = runner.describe(
            asked, batch_sizes=(*(usual * factor for factor in _ESTIMATED_BATCHES), 1)
        )
        smallest = replace(
            asked, batch_size=request.placement.count, workers=1, use_multiprocessing=False
        )
        if isinstance(described, Measurement) and described.outcome.is_oom:
            described = runner.describe(smallest)
        if isinstance(described, Measurement):
            failed, is_oom = Trial(smallest, described), described.outcome.is_oom
            raise (
                nothing_fits_error(request, failed)
                if is_oom
                else not_described(described, runner.budget)
            )
        self._description, self._describing_seconds = described, runner.budget.seconds()
        if self.study.forget_other_model(
            described.fingerprint
        ):  # of the same source code, or the study would be another
            self._emit(
                "the model or the shape of its data has changed; the trials of earlier tunes are deleted"
            )
        self.study.set_labels(request.labels())
        similar = self.study.similar_trials(request.warm_start_key(described))
        problem = build_problem(
            request, described, () if request.settings.options.fresh else similar
        )
        self.study.is_allowed = lambda config: config in problem.space or config == problem.baseline
        self._emit(
            Described(
                described, self._log(), request.settings.max_seconds, tuple(problem.space.knobs())
            )
        )
        for text in notices(problem):
            self._emit(text)
        return problem

    def fail(self, error: AutofitError) -> None:
        """Add the record of the tune to an error."""
        if isinstance(error, TuneError):
            needed: dict[str, Any] = {
                name: getattr(error, name, None)
                for name in ("memory", "batch_size", "needed_bytes")
            }
            error.tune = FailedTune(**vars(self._log()), problem=str(error), **needed)

    def _log(self) -> TuneLog:
        request = self._request
        return TuneLog(
            limits=request.limits,
            machine=request.machine,
            device=request.placement.name,
            description=self._description,
            trials=self.study.trials(),
            runs=tuple(self._runs),
            seconds=self._runner.budget.seconds(),
            describing_seconds=self._describing_seconds,
            started_at=self._started_at,
            call_source=request.call_source,
            placement=request.placement,
            study=request.fingerprint(),
        )
