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
                       TuningRecord

A generator: whoever draws it shows the events; nothing here prints.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace

from autofit.errors import AutofitError, NothingFitsError
from autofit.records.events import Activity, Described, Event, Notice, TrialEnded
from autofit.records.result import Seen, TuningRecord, Unanswered
from autofit.records.trial import Description, FitConfig, Measurement, Outcome, Trial, TrialSpec
from autofit.search.sampler import FrontierSampler
from autofit.search.space import KERAS_DEFAULTS, SearchSpace, build_space
from autofit.search.surrogate.memory import least_device_bytes
from autofit.storage import attributes
from autofit.storage.study import TuningStudy
from autofit.trial.launcher import Launcher
from autofit.tuning import failure
from autofit.tuning import record as records
from autofit.tuning.budget import SEARCH_SECONDS, Budget
from autofit.tuning.confirm import Prover
from autofit.tuning.request import Question
from autofit.tuning.runner import run_trial, user_error, why_not_described

_ESTIMATED = (1, 4, 16, 64)  # times the baseline's batch: memory is estimated there, and along lines between
_CLEARLY_WORSE = 0.9  # of the best rate: what is surely below it is not measured further


def tune(question: Question, launcher: Launcher) -> Generator[Event, None, TuningRecord]:
    """Find the fastest config that fits, and prove it.

    Raises:
        UserCodeError: the user's code raised; nothing more is tried.
        NothingFitsError: not even the smallest batch fits.
        NoTrialFinishedError: no trial ran to its end, for other reasons than memory.
        UsageError: the space or the baseline does not suit the data.
        StorageError: the trials cannot be stored.
    """
    tuning = _Tuning(question, launcher)
    try:
        return (yield from tuning.run())
    except AutofitError as error:
        error.seen = tuning.end(error)
        raise
    finally:
        tuning.close()


class _Tuning:
    def __init__(self, question: Question, launcher: Launcher) -> None:
        self._question, self._launcher = question, launcher
        self._budget = Budget(question)
        self._study: TuningStudy | None = None
        self._description: Description | None = None
        self._describing_seconds, self._started_at = 0.0, time.time()
        self._prover: Prover | None = None
        self._kept = 0  # trials of an earlier tune of the same question

    def run(self) -> Generator[Event, None, TuningRecord]:
        q = self._question
        study = self._study = TuningStudy(q.storage, q.fingerprint(), q.limits, q.max_trial_seconds, fresh=q.fresh)
        study.tell(q.told(self._started_at))
        description = self._description = yield from self._describe()
        self._describing_seconds = self._budget.seconds()
        space = self._space(description)
        baseline = q.baseline_in(space)
        self._check_smallest(description, space)
        if study.noted(attributes.MODEL) not in (None, description.fingerprint):
            study.begin_anew()
            study.tell(q.told(self._started_at))
            yield Notice("the model or the form of its data is not what it was: trials of an earlier run are forgotten")
        study.note(attributes.MODEL, description.fingerprint)
        kin = f"{q.kin()} {description.parameter_count} {description.sample_bytes}"
        study.note(attributes.KIN, kin)
        past = () if q.fresh else study.relatives(kin)
        sampler = self._sampler(description, space, baseline, past)
        known = study.trials()
        self._kept = len(known)
        yield Described(description, q.limits, q.machine, q.device_name, known, q.max_trials, q.max_seconds)
        yield from _notices(description, len(past), study.overtaken)
        prover = self._prover = Prover(q, study, sampler, self._budget, self._measured, self._spec)
        reason = yield from self._search(study, sampler)
        recommendation = yield from prover.prove(description, baseline, may_win=baseline in space)
        if recommendation is None:
            raise (yield from failure.why_nothing(q, self._budget, study.trials(), self._kept, self._measured))
        record = records.record(q, self.seen(), description, recommendation, reason)
        records.keep(study, q, record)
        return record

    def end(self, error: AutofitError) -> Unanswered:
        """What was seen by the time of an error; that nothing fits is kept as the answer, and no empty study is left."""
        unanswered, study = records.unanswered(self.seen(), error), self._study
        if study is not None and isinstance(error, NothingFitsError):
            records.keep(study, self._question, unanswered)
        elif study is not None and not study.trials():
            study.remove()
        return unanswered

    def seen(self) -> Seen:
        """What has been seen by now."""
        q = self._question
        return Seen(
            limits=q.limits,
            machine=q.machine,
            device=q.device_name,
            description=self._description,
            trials=self._study.trials() if self._study is not None else (),
            runs=self._prover.runs if self._prover is not None else (),
            seconds=self._budget.seconds(),
            describing_seconds=self._describing_seconds,
            started_at=self._started_at,
            usage=q.usage,
        )

    def close(self) -> None:
        """Leave nothing in the study that looks as if it were still running."""
        if self._study is not None:
            self._study.close()

    def _describe(self) -> Generator[Event, None, Description]:
        q = self._question
        config = replace(KERAS_DEFAULTS, **q.baseline)
        sizes = (*((config.batch_size or 1) * k for k in _ESTIMATED), 1)
        spec = TrialSpec("describe", config, q.limits, self._budget.deadline_seconds(), batch_sizes=sizes)
        described = yield from self._run(spec, Activity("describing the model and the data"))
        if isinstance(described, Description):
            return described
        if not described.outcome.is_oom:
            raise why_not_described(described)
        smallest = replace(config, batch_size=1, workers=1, use_multiprocessing=False)
        spec = TrialSpec("describe", smallest, q.limits, self._budget.deadline_seconds())
        described = yield from self._run(spec, Activity("describing the model and the data, batch 1"))
        if isinstance(described, Description):
            return described
        raise (yield from failure.what_it_needs(q, self._budget, Trial(smallest, described), self._measured))

    def _space(self, description: Description) -> SearchSpace:
        """What may be tried; no processes where they would hang."""
        q, count = self._question, description.sample_count
        space = build_space(
            q.space,
            description.knobs,
            cores=q.machine.cores,
            sample_count=q.sample_count if count is None else count,
            baseline=q.baseline,
            effective_batch_size=q.effective_batch_size,
            max_batch_size=q.max_batch_size,
        )
        hangs = description.processes_hang and space.use_multiprocessing is not None
        return replace(space, use_multiprocessing=(False,)) if hangs else space

    def _sampler(
        self, description: Description, space: SearchSpace, baseline: FitConfig, past: tuple[Trial, ...]
    ) -> FrontierSampler:
        """What proposes; it begins with what `past` trials of a similar question say."""
        q = self._question
        return FrontierSampler(
            space,
            baseline=baseline,
            description=description,
            limits=q.limits,
            cores=q.machine.cores,
            on_cpu=q.device is None,
            tolerance=q.tolerance,
            risk=q.risk,
            max_oom=q.max_oom,
            past=past,
        )

    def _check_smallest(self, description: Description, space: SearchSpace) -> None:
        """Say before anything is run that not even the smallest batch can fit, if that is sure."""
        limit = self._question.limits.device_bytes
        smallest = space.batch_size[0] if space.batch_size else None
        needed = least_device_bytes(description, smallest or 1)
        if limit is not None and needed > limit:
            raise NothingFitsError("device", smallest, needed, limit, at_least=True, estimated=True)

    def _search(self, study: TuningStudy, sampler: FrontierSampler) -> Generator[Event, None, str]:
        """Ask, run, tell, yield; returns why it stopped."""
        q, said = self._question, False
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
            activity = Activity(f"trial {len(trials) + 1} of at most {q.max_trials}", config, why=why)
            spec = self._spec(config, trials)
            measurement = yield from self._measured(spec, activity)
            if measurement.outcome is Outcome.TIMEOUT and spec.deadline_seconds < q.max_trial_seconds:
                return self._budget.out_of_time()  # it was not the config that was slow
            trial = Trial(config, measurement, why)
            study.add(trial, sampler.distributions)
            yield TrialEnded(trial, "search")
            if measurement.outcome is Outcome.ERROR:
                raise user_error(measurement)

    def _spec(self, config: FitConfig, trials: Sequence[Trial]) -> TrialSpec:
        """How to measure a config: as long as it may be the best, and without what is known."""
        q = self._question
        ran = [t for t in trials if t.measurement.samples_per_second]
        alone = [t.measurement.compute_samples_per_second for t in ran if t.config.batch_size == config.batch_size]
        return TrialSpec(
            "measure",
            config,
            q.limits,
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
        asked = replace(spec, effective_batch_size=self._question.effective_batch_size)
        return (yield from run_trial(asked, self._launcher, activity))


def _notices(description: Description, past: int, overtaken: int) -> Iterator[Notice]:
    """What is worth saying before the first trial: what the search begins with, and what was seen of the data."""
    if past:
        trials = "trial of a similar tune says" if past == 1 else "trials of a similar tune say"
        yield Notice(f"begins with what {past} {trials} (other limits or versions); all of it is confirmed anew")
    if overtaken:
        trials = "1 trial" if overtaken == 1 else f"{overtaken} trials"
        yield Notice(f"{trials} of an earlier run had less memory or time than there is now, and do not count")
    for text in description.notices:
        yield Notice(text)
