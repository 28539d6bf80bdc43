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

import functools
from collections.abc import Generator, Sequence
from dataclasses import replace

from autofit import answer, frontier
from autofit.budget import CONFIRM_SECONDS, SEARCH_SECONDS, Budget
from autofit.confirmation import Demoted, confirm, race
from autofit.errors import NothingFitsError, NoTrialFinishedError
from autofit.events import Activity, Described, Event, Notice, TrialEnded
from autofit.question import Question
from autofit.records import INPUT_BOUND, Description, FitConfig, Limits, Measurement, Outcome, Trial, TrialSpec
from autofit.results import Recommendation, TuningRecord
from autofit.running import run_trial, user_error, why_not_described
from autofit.sampler import FrontierSampler
from autofit.space import KERAS_DEFAULTS, SearchSpace, build_space, cost
from autofit.study import TuningStudy
from autofit.surrogate.memory import least_device_bytes
from autofit.trial.launcher import Launcher

_LIFTED_HOST_SHARE = 0.95
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
    finally:
        tuning.close()


class _Tuning:
    def __init__(self, question: Question, launcher: Launcher) -> None:
        self._question, self._launcher = question, launcher
        self._budget = Budget(question)
        self._study: TuningStudy | None = None

    def run(self) -> Generator[Event, None, TuningRecord]:
        q = self._question
        description = yield from self._describe()
        count = description.sample_count
        space = build_space(
            q.space,
            description.knobs,
            cores=q.machine.cores,
            sample_count=q.sample_count if count is None else count,
            baseline=q.baseline,
            effective_batch_size=q.effective_batch_size,
            max_batch_size=q.max_batch_size,
        )
        if description.processes_hang and space.use_multiprocessing is not None:
            space = replace(space, use_multiprocessing=(False,))
        baseline = q.baseline_in(space)
        self._check_smallest(description, space)
        sampler = FrontierSampler(
            space,
            baseline=baseline,
            description=description,
            limits=q.limits,
            cores=q.machine.cores,
            on_cpu=q.device is None,
            tolerance=q.tolerance,
            risk=q.risk,
            max_oom=q.max_oom,
        )
        study = self._study = TuningStudy(q.storage, q.study_name(description, space), sampler, q.limits, fresh=q.fresh)
        known = study.trials()
        yield Described(description, q.limits, q.machine, q.device_name, known, q.max_trials, q.max_seconds)
        for text in description.notices:
            yield Notice(text)
        kept = answer.kept(study, q)
        if kept is not None:
            return kept
        reason = yield from self._search(study)
        recommendation = yield from self._confirm(study, description, space, baseline)
        record = answer.record(q, study.trials(), description, recommendation, reason, self._budget.seconds())
        answer.keep(study, q, record)
        return record

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
        raise (yield from self._what_it_needs(Trial(smallest, described)))

    def _check_smallest(self, description: Description, space: SearchSpace) -> None:
        """Say before anything is run that not even the smallest batch can fit, if that is sure."""
        limit = self._question.limits.device_bytes
        smallest = space.batch_size[0] if space.batch_size else None
        needed = least_device_bytes(description, smallest or 1)
        if limit is not None and needed > limit:
            raise NothingFitsError("device", smallest, needed, limit, at_least=True, estimated=True)

    def _search(self, study: TuningStudy) -> Generator[Event, None, str]:
        """Ask, run, tell, yield; returns why it stopped."""
        q, said = self._question, False
        while True:
            trials = study.trials()
            decision = study.decide(trials)
            if decision.fallback is not None and not said:
                said = True
                yield Notice(decision.fallback)
            reason = decision.stop_reason or self._budget.spent(trials)
            if reason is not None:
                return reason
            config = decision.proposal.config if decision.proposal else study.ask()
            why = str(decision.proposal or "proposed by Optuna's TPE")
            activity = Activity(f"trial {len(trials) + 1} of at most {q.max_trials}", config, why=why)
            spec = self._spec(config, trials)
            measurement = yield from self._measured(spec, activity)
            if measurement.outcome is Outcome.TIMEOUT and spec.deadline_seconds < q.max_trial_seconds:
                return self._budget.out_of_time()  # it was not the config that was slow
            study.add(Trial(config, measurement))
            yield TrialEnded(Trial(config, measurement), "search")
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

    def _confirm(
        self, study: TuningStudy, description: Description, space: SearchSpace, baseline: FitConfig
    ) -> Generator[Event, None, Recommendation]:
        q = self._question
        while True:
            trials = study.trials()
            chosen = yield from self._choose(study)
            if chosen is None:
                if len(study.trials()) > len(trials):
                    continue
                raise (yield from self._why_nothing(trials))
            verdict = yield from confirm(
                chosen,
                baseline,
                functools.partial(self._confirming_run, study, chosen.measurement),
                self._budget.rounds(chosen),
                may_win=baseline in space,
                tolerance=q.tolerance,
                may_shrink="batch_size" in description.validation_knobs or q.usage.validation_form == "arrays",
            )
            if isinstance(verdict, Recommendation):
                return verdict
            study.add(verdict.trial)

    def _choose(self, study: TuningStudy) -> Generator[Event, None, Trial | None]:
        """The trial to confirm, after a race where noise leaves it open; None when none is left, or a finalist failed."""
        q, trials = self._question, study.trials()
        thoughts = study.rates()
        last = frontier.finalists(trials, q.limits, q.tolerance, thoughts)
        if len(last) < 2 or not self._budget.allows_race(trials, len(last)):
            return last[-1] if last else None
        rates = yield from race(last, thoughts, functools.partial(self._racing_run, trials))
        if isinstance(rates, Demoted):
            study.add(rates.trial)
            return None
        return frontier.choose(last, q.limits, q.tolerance, rates)

    def _racing_run(
        self, trials: Sequence[Trial], config: FitConfig, activity: Activity
    ) -> Generator[Event, None, Measurement]:
        spec = replace(self._spec(config, trials), rate_to_beat=None)
        return (yield from self._run_again(spec, activity))

    def _confirming_run(
        self,
        study: TuningStudy,
        chosen: Measurement,
        config: FitConfig,
        activity: Activity,
        validation_batch_size: int | None,
    ) -> Generator[Event, None, Measurement]:
        known = [t.measurement for t in study.trials() if t.config == config and t.measurement.samples_per_second]
        rate = known[0] if known else chosen
        spec = TrialSpec(
            role="confirm",
            config=config,
            limits=self._question.limits,
            deadline_seconds=self._budget.confirming_deadline_seconds(rate),
            measure_seconds=CONFIRM_SECONDS,
            validation_batch_size=validation_batch_size,
            input_bound=(rate.input_samples_per_second or 0) < INPUT_BOUND * (rate.compute_samples_per_second or 0),
        )
        return (yield from self._run_again(spec, activity))

    def _run_again(self, spec: TrialSpec, activity: Activity) -> Generator[Event, None, Measurement]:
        """Run what has run before; an error of the user's is not the config's."""
        measurement = yield from self._measured(spec, activity)
        if measurement.outcome is Outcome.ERROR:
            raise user_error(measurement)
        return measurement

    def _why_nothing(self, trials: tuple[Trial, ...]) -> Generator[Event, None, NothingFitsError | NoTrialFinishedError]:
        """The error that says why no trial ran to its end."""
        ooms = [trial for trial in trials if trial.measurement.outcome.is_oom]
        if not ooms:
            tally = {o.value: sum(t.measurement.outcome is o for t in trials) for o in Outcome}
            counts = ", ".join(f"{count} {name}" for name, count in tally.items() if count)
            last = trials[-1].measurement.evidence.reason if trials else "no trial was run"
            return NoTrialFinishedError(f"no trial ran to its end ({counts or 'none was started'}); the last one: {last}")
        return (yield from self._what_it_needs(min(ooms, key=lambda trial: cost(trial.config))))

    def _what_it_needs(self, smallest: Trial) -> Generator[Event, None, NothingFitsError]:
        """Run the smallest config, which did not fit, with the limits lifted."""
        q = self._question
        memory = "device" if smallest.measurement.outcome is Outcome.DEVICE_OOM else "host"
        limit = (q.limits.device_bytes or 0) if memory == "device" else q.limits.host_bytes
        most = q.device.free_bytes if q.device else q.machine.available_bytes
        lifted = Limits(most if q.limits.device_bytes else None, round(_LIFTED_HOST_SHARE * q.machine.available_bytes))
        spec = TrialSpec("measure", smallest.config, lifted, self._budget.deadline_seconds(), SEARCH_SECONDS)
        measurement = yield from self._measured(spec, Activity("what the smallest batch needs", smallest.config))
        peak = measurement.device_peak_bytes if memory == "device" else measurement.host_peak_bytes
        known = smallest.measurement.device_peak_bytes if memory == "device" else smallest.measurement.host_peak_bytes
        failed = measurement.outcome is not Outcome.OK
        return NothingFitsError(memory, smallest.config.batch_size, peak or known or limit, limit, at_least=failed)

    def _measured(self, spec: TrialSpec, activity: Activity) -> Generator[Event, None, Measurement]:
        result = yield from self._run(spec, activity)
        assert isinstance(result, Measurement), "only a describing trial returns a description"
        return result

    def _run(self, spec: TrialSpec, activity: Activity) -> Generator[Event, None, Measurement | Description]:
        asked = replace(spec, effective_batch_size=self._question.effective_batch_size)
        return (yield from run_trial(asked, self._launcher, activity))
