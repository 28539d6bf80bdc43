"""The engine: the loop that runs what the policy decides, and stores the result.

    TuneRequest ─ describe ─> Problem ──> next step ──> run it in a process ──> store the reading ─┐
                                             ▲ └─────── stop ──> answers ──> TuneRecord            │
                                             └─────────────────────────────────────────────────────┘

The baseline is the user's present config. There are two answers: the fastest config with the
baseline's batch size, so that training makes the same updates, and the fastest of all. (If only one
batch size is searched, they are one.)
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from autofit.errors import TuneError
from autofit.records.description import Description
from autofit.records.events import Activity, Described, Emit
from autofit.records.knobs import KERAS_DEFAULTS, FitConfig
from autofit.records.result import ROUNDS, FailedTune, TuneLog, TuneRecord
from autofit.records.states import Outcome, Stage
from autofit.records.trial import Measurement, Trial
from autofit.records.units import format_rate
from autofit.search.memory import Memory
from autofit.search.sampler import BoundedSampler
from autofit.storage import result_files
from autofit.storage.study import TuningStudy
from autofit.trial.launcher import Launcher
from autofit.tuning import claims
from autofit.tuning.answers import answer_of
from autofit.tuning.claims import Claim, Round
from autofit.tuning.policy import LOOP, Compare, Policy, Run, Stop
from autofit.tuning.problem import Problem, build_problem, notices
from autofit.tuning.record import no_result_error, nothing_fits_error, record_of
from autofit.tuning.request import TuneRequest
from autofit.tuning.runner import TrialRunner, not_described, raise_user_error


def tune(request: TuneRequest, launcher: Launcher, emit: Emit) -> TuneRecord:
    """Find the fastest config that fits, compare it with the baseline, and store the result."""
    with start(request, launcher, emit) as (engine, problem):
        return engine.search(problem)


@contextlib.contextmanager
def start(
    request: TuneRequest, launcher: Launcher, emit: Emit
) -> Iterator[tuple[Engine, Problem]]:
    """Describe the workload of a tune, and pose its problem; the study is closed at the end."""
    engine = Engine(request, launcher, emit)
    try:
        yield engine, engine.begin()
    except TuneError as error:
        engine.fail(error)
        raise
    finally:
        engine.study.close()


# What happens when
#
#   a run is out of memory    it is a reading like any other; nothing is proposed that would take
#                             as much
#   the user's code raises    with the baseline, the tune ends with the traceback. Otherwise the
#                             search leaves out what is like it: the same kind of workers, several
#                             steps in a call, or batch sizes without a divisor that all sizes have
#                             which ran
#   a run hangs or crashes    it is recorded, and counts in this tune only: a later one may try its
#                             config again
#   `max_seconds` is reached  the run in progress is ended: that of a new config counts as too slow,
#                             any other is forgotten. New ones begin only with time left to run what
#                             is delivered; an answer that did not run again, or was not compared,
#                             says which `max_seconds` would do
#   Ctrl-C or kill            the run in progress is lost. All others were stored when they ended:
#                             the next tune of the same request goes on with them, and compares the
#                             answers from the first round on
#   an answer's run fails     its config may not be chosen, and the policy decides anew; a
#                             comparison begins anew
#   nothing fits              `NothingFitsError` is raised; the trials are stored, so that a later
#                             tune only describes
class Engine:
    """Runs the steps of one tune, and stores their readings."""

    def __init__(self, request: TuneRequest, launcher: Launcher, emit: Emit) -> None:
        self._emit = emit
        self._started_at = time.time()
        settings = request.settings
        self.study = TuningStudy(
            settings.storage, request.fingerprint(), emit, fresh=settings.options.fresh
        )
        self._request = request.under(
            self.study.attributes.get(result_files.FAILED) or {}
        )
        self.study.resume(self._request.limits)
        self.runner = TrialRunner(self._request, launcher, emit)
        self._description: Description | None = None
        self._describing_seconds = 0.0

    def begin(self) -> Problem:
        """Describe the workload, and pose the problem."""
        self._description = self._describe()
        self._describing_seconds = self.runner.budget.seconds()
        return self._pose(self._description)

    def search(self, problem: Problem) -> TuneRecord:
        """Search until the policy stops, and store the result."""
        stop, claim = self._loop(problem)
        readings = self.study.trials()
        choice = stop.choice
        if choice is None:
            for trial in readings:
                raise_user_error(trial.measurement)
            raise no_result_error(problem, self.runner.budget, readings, stop.reason)
        make = partial(answer_of, problem, readings, claim.rounds, stop)
        own = None if choice.own is None else make(choice.own)
        answers = (make(choice.fastest), own)
        record = record_of(problem, self.log(), answers, stop.reason)
        self.study.set_attribute(
            self._request.result_key(), result_files.encode(record)
        )
        # the answers in words, for Optuna's tools
        labels = {"at your batch": record.same_batch, "fastest": record.fastest}
        for name, answer in labels.items():
            if answer is not None:
                rate = format_rate(answer.samples_per_second)
                self.study.set_labels({name: f"{answer.config}: {rate} samples/s"})
        return record

    def _loop(self, problem: Problem) -> tuple[Stop, Claim]:
        """Run what the policy decides until it stops; return that, and its claim."""
        policy = Policy(problem, self._describing_seconds)
        budget = self.runner.budget
        sampler = problem.request.settings.options.sampler
        if sampler is not None:
            # to what is predicted to fit
            sampler = BoundedSampler(
                sampler,
                problem.space,
                baseline=problem.baseline,
                **vars(problem.context),
            )
        claim = claims.NONE
        while True:
            readings = self.study.trials()
            no_new = sampler.decide(readings).stop_reason if sampler else None
            step = policy.next_step(readings, claim, budget.seconds(), no_new)
            if isinstance(step, Stop):
                return step, claim
            if isinstance(step, Compare):
                claim = Claim(self._compare(problem, step), step.reason)
            elif sampler is not None and step.stage is Stage.SEARCH:
                sampler.trials = readings
                asked = self.study.ask(sampler)
                config = sampler.suggest(asked)
                proposed = replace(step, config=config, why=str(sampler.proposal))
                self.run(problem, proposed, asked)
            else:
                self.run(problem, step)

    def _compare(self, problem: Problem, step: Compare) -> list[Round]:
        """Run configs beside each other.

        Return no round if a run fails or is cut off, so that the policy decides anew.
        """
        # A comparison that was cut off is not gone on with: rounds that are minutes apart are not
        # beside each other. Its runs stay readings of their configs.
        rounds = list[Round]()
        for number in range(ROUNDS):
            rates = dict[FitConfig, float]()
            for config in claims.order(step.configs, number):
                why = "to show what is gained over the baseline"
                step_beside = Run(config, Stage.BESIDE, why, math.inf)
                trial = self.run(problem, step_beside)
                if trial is None or not trial.samples_per_second:
                    return []
                rates[config] = trial.samples_per_second
            rounds.append(rates)
        return rounds

    def run(self, problem: Problem, step: Run, asked: Any = None) -> Trial | None:
        """Run a step and store its reading, as the trial of Optuna that was asked for, if any.

        Return None if `max_seconds` cut off a run of a config that had run before.
        """
        config = step.config
        runner = self.runner
        decided_after = runner.budget.seconds()
        readings = self.study.trials()
        activity = Activity(self._doing(problem, step), config, why=step.why)
        if step.stage is Stage.SEARCH:
            # what is delivered runs again, and then with a full queue
            is_ample = Memory(problem.context, readings).is_ample(config)
            trial = runner.measure(
                config,
                activity,
                readings,
                step.most_seconds,
                reads_memory=not is_ample,
                reads_epoch=step.reads_epoch,
            )
        else:
            trial = runner.confirm(config, activity, readings)
            if trial.measurement.ran_out_of_time and not runner.budget.seconds_left():
                return None
        trial = replace(
            trial, why=step.why, stage=step.stage, decided_after=decided_after
        )
        # the baseline may be outside the space, which Optuna's parameters cannot be
        knobs = problem.space.knobs() if config in problem.space else {}
        trial = self.study.add(trial, self._request.limits, knobs, asked)
        self._emit(trial)
        if config == problem.baseline:
            raise_user_error(trial.measurement)
        if trial.measurement.outcome is Outcome.ERROR:
            reason = trial.measurement.evidence.reason.strip()
            consequence = "what only this configuration has is left out"
            self._emit(f"your code fails with {config} ({reason}); {consequence}")
        return trial

    def _doing(self, problem: Problem, step: Run) -> str:
        """Return what a step is, in words."""
        if step.stage is Stage.BESIDE:
            return f"running the answers and the baseline beside each other, {ROUNDS} times"
        if step.stage is Stage.CHOSEN:
            return "running what is to be delivered"
        most = problem.request.settings.max_trials
        done = sum(trial.stage in LOOP for trial in self.study.trials())
        return f"trial {done + 1} of at most {most}"

    def _describe(self) -> Description:
        """Describe the workload with the baseline's batch size.

        If that does not fit, describe it with one sample on each device.
        """
        request = self._request
        runner = self.runner
        asked = request.asked_baseline
        usual = asked.batch_size or KERAS_DEFAULTS.batch_size or 1
        # memory is estimated for these multiples of the baseline's batch size
        sizes = [usual * factor for factor in (1, 4, 16, 64)]
        described = runner.describe(asked, batch_sizes=(*sizes, 1))
        smallest = replace(
            asked,
            batch_size=request.placement.count,
            workers=1,
            use_multiprocessing=False,
        )
        if isinstance(described, Measurement) and described.outcome.is_oom:
            described = runner.describe(smallest)
        if isinstance(described, Description):
            return described
        if described.outcome.is_oom:
            raise nothing_fits_error(request, Trial(smallest, described))
        raise not_described(described, runner.budget)

    def _pose(self, description: Description) -> Problem:
        """Pose the problem of a described workload, and say what it is."""
        request = self._request
        # of the same source code, or the study would be another
        if self.study.forget_other_model(description.fingerprint):
            self._emit(
                "the model or the shape of its data has changed; the trials of earlier tunes "
                "are deleted"
            )
        self.study.set_labels(request.labels())
        similar = self.study.similar_trials(request.warm_start_key(description))
        if request.settings.options.fresh:
            similar = ()
        problem = build_problem(request, description, similar)
        space = problem.space
        self.study.leave_out(
            lambda config: config not in space and config != problem.baseline
        )
        max_seconds = request.settings.max_seconds
        self._emit(
            Described(description, self.log(), max_seconds, tuple(space.knobs()))
        )
        for text in notices(problem):
            self._emit(text)
        return problem

    def fail(self, error: TuneError) -> None:
        """Add the record of the tune to an error."""
        needed: dict[str, Any] = {
            name: getattr(error, name, None)
            for name in ("memory", "batch_size", "needed_bytes")
        }
        error.tune = FailedTune(**vars(self.log()), problem=str(error), **needed)

    def log(self) -> TuneLog:
        """Return what has run so far."""
        request = self._request
        readings = self.study.trials()
        # a further run that failed counts against its config
        trials = [
            t for t in readings if t.stage is Stage.SEARCH or not t.samples_per_second
        ]
        return TuneLog(
            limits=request.limits,
            machine=request.machine,
            device=request.placement.name,
            description=self._description,
            trials=tuple(trials),
            runs=tuple(trial for trial in readings if trial.stage is not Stage.SEARCH),
            seconds=self.runner.budget.seconds(),
            describing_seconds=self._describing_seconds,
            started_at=self._started_at,
            call_source=request.call_source,
            placement=request.placement,
            study=request.fingerprint(),
        )
