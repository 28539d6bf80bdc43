"""THE loop: ask, run, tell, yield.

    Question ──> describe ──> SearchSpace, study
                                  │
              ┌───────────────────┴───────────────────┐
              │  ask -> FitConfig -> run -> Measurement│   until the sampler has nothing more to try,
              │  tell the study, yield the Trial       │   or trials or seconds are spent
              └───────────────────┬───────────────────┘
                                  │
              choose ──> confirm ──> failed: tell the study, choose again
                            │
                       TuneRecord

A generator: whoever draws it shows the events; nothing here prints.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace

from autofit.errors import AutofitError, NothingFitsError
from autofit.records.events import Activity, Described, Event, Notice, TrialEnded
from autofit.records.result import FailedTune, TuneLog, TuneRecord
from autofit.records.trial import Description, FitConfig, Measurement, Outcome, Trial, TrialSpec
from autofit.records.units import counted
from autofit.search.sampler import FrontierSampler
from autofit.search.space import KERAS_DEFAULTS, SearchSpace, build_space
from autofit.search.surrogate.memory import least_device_bytes
from autofit.storage import attributes
from autofit.storage.study import TuningStudy
from autofit.trial.launcher import Launcher
from autofit.tuning import failure
from autofit.tuning import record as records
from autofit.tuning.budget import SEARCH_SECONDS, Budget
from autofit.tuning.confirm import Confirmation
from autofit.tuning.request import TuneRequest
from autofit.tuning.runner import run_trial, user_error, why_not_described

_ESTIMATED = (1, 4, 16, 64)  # times the baseline's batch: memory is estimated there, and along lines between
_CLEARLY_WORSE = 0.9  # of the best rate: what is surely below it is not measured further


def tune(request: TuneRequest, launcher: Launcher) -> Generator[Event, None, TuneRecord]:
    """Find the fastest config that fits, and prove it.

    Raises:
        UserCodeError: the user's code raised; nothing more is tried.
        NothingFitsError: not even the smallest batch fits.
        NoTrialFinishedError: no trial ran to its end, for other reasons than memory.
        UsageError: the space or the baseline does not suit the data.
        StorageError: the trials cannot be stored.
    """
    tuning = _Tuning(request, launcher)
    try:
        return (yield from tuning.run())
    except AutofitError as error:
        error.seen = tuning.end(error)
        raise
    finally:
        tuning.close()


class _Tuning:
    def __init__(self, request: TuneRequest, launcher: Launcher) -> None:
        self._request, self._launcher = request, launcher
        self._budget = Budget(request)
        self._study: TuningStudy | None = None
        self._description: Description | None = None
        self._describing_seconds, self._started_at = 0.0, time.time()
        self._prover: Confirmation | None = None
        self._kept = 0  # trials of an earlier tune of the same question

    def run(self) -> Generator[Event, None, TuneRecord]:
        request = self._request
        study = self._study = TuningStudy(
            request.storage, request.fingerprint(), request.limits, request.max_trial_seconds, fresh=request.fresh
        )
        study.set_user_attributes(request.metadata(self._started_at))
        description = self._description = yield from self._describe()
        self._describing_seconds = self._budget.seconds()
        space = self._space(description)
        baseline = request.baseline_in(space)
        self._check_smallest(description, space)
        if study.attribute(attributes.MODEL) not in (None, description.fingerprint):
            study.reset()
            study.set_user_attributes(request.metadata(self._started_at))
            yield Notice("the model or the form of its data is not what it was: trials of an earlier run are forgotten")
        study.set_attribute(attributes.MODEL, description.fingerprint)
        warm_start_key = f"{request.warm_start_key()} {description.parameter_count} {description.sample_bytes}"
        study.set_attribute(attributes.WARM_START_KEY, warm_start_key)
        warm_start = () if request.fresh else study.similar_trials(warm_start_key)
        sampler = self._sampler(description, space, baseline, warm_start)
        known = study.trials()
        self._kept = len(known)
        yield Described(
            description,
            request.limits,
            request.machine,
            request.device_name,
            known,
            request.max_trials,
            request.max_seconds,
        )
        yield from _notices(description, len(warm_start), study.stale)
        prover = self._prover = Confirmation(request, study, sampler, self._budget, self._measured, self._spec)
        reason = yield from self._search(study, sampler)
        recommendation = yield from prover.prove(description, baseline, may_win=baseline in space)
        if recommendation is None:
            raise (yield from failure.infeasible_error(request, self._budget, study.trials(), self._kept, self._measured))
        record = records.record(request, self.seen(), description, recommendation, reason)
        records.keep(study, request, record)
        return record

    def end(self, error: AutofitError) -> FailedTune:
        """What was seen by the time of an error; that nothing fits is kept as the answer, and no empty study is left."""
        unanswered, study = records.unanswered(self.seen(), error), self._study
        if study is not None and isinstance(error, NothingFitsError):
            records.keep(study, self._request, unanswered)
        elif study is not None and not study.trials():
            study.remove()
        return unanswered

    def seen(self) -> TuneLog:
        """What has been seen by now."""
        request = self._request
        return TuneLog(
            limits=request.limits,
            machine=request.machine,
            device=request.device_name,
            description=self._description,
            trials=self._study.trials() if self._study is not None else (),
            runs=self._prover.runs if self._prover is not None else (),
            seconds=self._budget.seconds(),
            describing_seconds=self._describing_seconds,
            started_at=self._started_at,
            usage=request.usage,
        )

    def close(self) -> None:
        """Leave nothing in the study that looks as if it were still running."""
        if self._study is not None:
            self._study.close()

    def _describe(self) -> Generator[Event, None, Description]:
        request = self._request
        config = replace(KERAS_DEFAULTS, **request.baseline)
        sizes = (*((config.batch_size or 1) * k for k in _ESTIMATED), 1)
        spec = TrialSpec("describe", config, request.limits, self._budget.deadline_seconds(), batch_sizes=sizes)
        described = yield from self._run(spec, Activity("describing the model and the data"))
        if isinstance(described, Description):
            return described
        if not described.outcome.is_oom:
            raise why_not_described(described)
        smallest = replace(config, batch_size=1, workers=1, use_multiprocessing=False)
        spec = TrialSpec("describe", smallest, request.limits, self._budget.deadline_seconds())
        described = yield from self._run(spec, Activity("describing the model and the data, batch 1"))
        if isinstance(described, Description):
            return described
        raise (yield from failure.measure_smallest(request, self._budget, Trial(smallest, described), self._measured))

    def _space(self, description: Description) -> SearchSpace:
        """What may be tried; no processes where they would hang."""
        request, count = self._request, description.sample_count
        space = build_space(
            request.space,
            description.knobs,
            cores=request.machine.cores,
            sample_count=request.sample_count if count is None else count,
            baseline=request.baseline,
            effective_batch_size=request.effective_batch_size,
            max_batch_size=request.max_batch_size,
        )
        hangs = description.processes_hang and space.use_multiprocessing is not None
        return replace(space, use_multiprocessing=(False,)) if hangs else space

    def _sampler(
        self, description: Description, space: SearchSpace, baseline: FitConfig, warm_start: tuple[Trial, ...]
    ) -> FrontierSampler:
        """What proposes; it begins with what `warm_start` trials of a similar question say."""
        request = self._request
        return FrontierSampler(
            space,
            baseline=baseline,
            description=description,
            limits=request.limits,
            cores=request.machine.cores,
            on_cpu=request.device is None,
            tolerance=request.tolerance,
            risk=request.risk,
            max_oom=request.max_oom,
            warm_start=warm_start,
        )

    def _check_smallest(self, description: Description, space: SearchSpace) -> None:
        """Say before anything is run that not even the smallest batch can fit, if that is sure."""
        limit = self._request.limits.device_bytes
        smallest = space.batch_size[0] if space.batch_size else None
        needed = least_device_bytes(description, smallest or 1)
        if limit is not None and needed > limit:
            raise NothingFitsError("device", smallest, needed, limit, at_least=True, estimated=True)

    def _search(self, study: TuningStudy, sampler: FrontierSampler) -> Generator[Event, None, str]:
        """Ask, run, tell, yield; returns why it stopped."""
        request, said = self._request, False
        while True:
            trials = study.trials()
            decision = sampler.proposer.decide(trials)
            reason = decision.stop_reason or self._budget.spent(trials, self._kept)
            if reason is not None:
                return reason
            if decision.fallback is not None and not said:
                said = True
                yield Notice(decision.fallback)
            config = decision.proposal.config if decision.proposal else sampler.draw(trials)
            why = str(decision.proposal or "proposed by Optuna's TPE")
            activity = Activity(f"trial {len(trials) + 1} of at most {request.max_trials}", config, why=why)
            spec = self._spec(config, trials)
            measurement = yield from self._measured(spec, activity)
            if measurement.outcome is Outcome.TIMEOUT and spec.deadline_seconds < request.max_trial_seconds:
                return self._budget.out_of_time()  # it was not the config that was slow
            trial = Trial(config, measurement, why)
            study.add(trial, sampler.distributions)
            yield TrialEnded(trial, "search")
            if measurement.outcome is Outcome.ERROR:
                raise user_error(measurement)

    def _spec(self, config: FitConfig, trials: Sequence[Trial]) -> TrialSpec:
        """How to measure a config: as long as it may be the best, and without what is known."""
        request = self._request
        ran = [t for t in trials if t.measurement.samples_per_second]
        alone = [t.measurement.compute_samples_per_second for t in ran if t.config.batch_size == config.batch_size]
        return TrialSpec(
            "measure",
            config,
            request.limits,
            self._budget.deadline_seconds(),
            SEARCH_SECONDS,
            rate_to_beat=_CLEARLY_WORSE * max((t.measurement.samples_per_second or 0.0 for t in ran), default=0.0),
            compute_samples_per_second=next((rate for rate in alone if rate), None),
        )

    def _measured(self, spec: TrialSpec, activity: Activity) -> Generator[Event, None, Measurement]:
        result = yield from self._run(spec, activity)
        assert isinstance(result, Measurement), "only a describing trial returns a description"
        return result

    def _run(self, spec: TrialSpec, activity: Activity) -> Generator[Event, None, Measurement | Description]:
        asked = replace(spec, effective_batch_size=self._request.effective_batch_size)
        return (yield from run_trial(asked, self._launcher, activity))


def _notices(description: Description, warm_start: int, stale: int) -> Iterator[Notice]:
    """What is worth saying before the first trial: what the search begins with, and what was seen of the data."""
    if warm_start:
        trials = counted(warm_start, "trial")
        yield Notice(f"starts from {trials} of similar tunes (other limits or versions); the choice is confirmed anew")
    if stale:
        yield Notice(f"not reused: {counted(stale, 'trial')} of an earlier run, with less memory or time than there is now")
    for text in description.notices:
        yield Notice(text)
