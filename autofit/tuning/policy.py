"""Decide the next step of a tune: a function of the problem, the readings and the seconds so far.

    1  used up     `max_trials` or the time are, or all trials so far hung or crashed
                   ──> nothing more is searched: rule 3
    2  worth a run a new config, or once more one that has run (`search/`)  ──> run it
    3  a claim     an answer is predicted to be faster than the baseline
                   ──> run them beside each other
    4  unproven    what would be delivered has not run since it was new     ──> run it
    5  otherwise                                                            ──> stop

The rules are asked in this order before each step; once a claim was made, only the last two.
A tune may also end by an error, which the engine raises: the user's code fails with the baseline,
or nothing fits.
Nothing here runs anything, has a clock, or remembers: the same readings and seconds give the same
step. A tune that was killed goes on with its readings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autofit.records.knobs import FitConfig
from autofit.records.result import ROUNDS
from autofit.records.states import Outcome, Stage
from autofit.records.trial import Trial
from autofit.search.frontier import FrontierSearch, LargestBatch, Reason
from autofit.search.rates import rated_trials
from autofit.tuning import claims
from autofit.tuning.budget import confirming_seconds, longest_trial, trial_seconds
from autofit.tuning.delivery import Choice, baseline_outcome, choose
from autofit.tuning.problem import Problem
from autofit.tuning.settings import LARGEST

# what `max_trials` counts
LOOP = (Stage.SEARCH, Stage.AGAIN)
# runs before the loop may stop because none is worth its time: before, the models are too sure
# (whole tunes deliver 0.003 to 0.007 less with 6 than with 8, which take more seconds)
_FEWEST_RUNS = 7
# with time for fewer, each must be one that may become the answer (assumed)
_FEW_RUNS = 5
# if this many trials time out or crash and no other ran, the next one would fail as well
_HOPELESS_TRIALS = 3
# in whose seconds the comparison must end: a plain grid has as many trials, and a tune that takes
# longer than what it replaces is not worth it
_GRID_TRIALS = 15


@dataclass(frozen=True)
class Run:
    """Run a config.

    A new one is ended after `most_seconds`, and may be replaced by what the user's sampler
    proposes. It also `reads_epoch`, the start and the validation of one, if that is asked for.
    """

    config: FitConfig
    stage: Stage
    why: str
    most_seconds: float
    reads_epoch: bool = False


@dataclass(frozen=True)
class Compare:
    """Run configs beside each other, in rounds; `reason` is why no other run is worth its time."""

    configs: tuple[FitConfig, ...]
    reason: str


@dataclass(frozen=True)
class Stop:
    """Deliver the choice, or nothing.

    `needed_seconds` is the `max_seconds` that would have allowed what time did not.
    """

    choice: Choice | None
    reason: str
    needed_seconds: float | None = None


Step = Run | Compare | Stop


class Policy:
    """The rules of one tune; describing its workload took `describing_seconds`."""

    def __init__(self, problem: Problem, describing_seconds: float = 0.0) -> None:
        self._problem = problem
        self._settings = problem.request.settings
        self._describing_seconds = describing_seconds
        self._max_seconds = self._settings.max_seconds or math.inf
        self._is_largest = self._settings.batch_size == LARGEST
        kind = LargestBatch if self._is_largest else FrontierSearch
        self._search = kind(
            problem.space,
            problem.baseline,
            problem.context,
            own_batch=problem.own_batch,
            repeats=True,
        )

    def next_step(
        self,
        readings: Sequence[Trial],
        claim: claims.Claim = claims.NONE,
        seconds: float = 0.0,
        no_new: str | None = None,
    ) -> Step:
        """Return the next step, some seconds after the tune began.

        `claim` holds what ran beside each other, if anything did. `no_new` is why no new config can
        be had, if the user's sampler has none.
        """
        if claim.rounds:
            return self._conclude(claim, readings, seconds)
        step = self._worth_a_run(
            readings, max(0.0, self._max_seconds - seconds), no_new
        )
        if isinstance(step, Run):
            return step
        return self._conclude(claims.Claim(reason=step), readings, seconds)

    def _conclude(
        self, claim: claims.Claim, readings: Sequence[Trial], seconds: float
    ) -> Step:
        """Return what is to be done for an answer, once no other run is worth its time."""
        rounds, reason = claim
        tolerance = self._settings.options.tolerance
        shown = claims.Shown.by(rounds, self._problem.baseline, tolerance)
        choice = choose(self._problem, readings, shown)
        needed_seconds = None
        if choice is None:
            return Stop(None, reason)
        line = () if rounds else self._to_compare(choice, readings, seconds)
        if line:
            end = seconds + ROUNDS * sum(
                confirming_seconds(config, readings) for config in line
            )
            if end <= self._max_seconds:
                return Compare(line, reason)
            needed_seconds = _round_up(end)
        end = seconds
        unproven = self._unproven(choice, readings)
        for config in unproven:
            run_seconds = confirming_seconds(config, readings)
            if seconds + run_seconds <= self._max_seconds:
                why = "once more before it is delivered"
                return Run(config, Stage.CHOSEN, why, self._max_seconds - seconds)
            end += run_seconds
            needed_seconds = max(needed_seconds or 0.0, _round_up(end))
        if self._problem.baseline in unproven:
            # it may be the choice before it has run, but is not delivered so
            choice = choose(self._problem, readings, shown, has_run=True)
        return Stop(choice, reason, needed_seconds)

    def _worth_a_run(
        self, readings: Sequence[Trial], seconds_left: float, no_new: str | None
    ) -> Run | str:
        """Return the run that is worth most, or why none is."""
        runs = [trial for trial in readings if trial.stage in LOOP]
        seconds = self._seconds_for_a_trial(readings, seconds_left)
        expected = trial_seconds([run for run in runs if run.stage is Stage.SEARCH])
        if reason := self._used_up(runs):
            return reason
        if seconds <= expected:
            left = f"leaves {seconds_left:.0f} s, too few for another trial and a run of the choice"
            if seconds_left < 1:
                left = "is used up"
            return f"max_seconds ({self._max_seconds:g}) {left}"
        # with time for few runs, hardly any would follow one that is only made to learn from
        decision = self._search.propose(
            readings, is_short=seconds < _FEW_RUNS * expected
        )
        proposal = decision.proposal
        if proposal is None:
            return decision.stop_reason or ""
        is_again = proposal.reason is Reason.AGAIN
        # a further run of a config that is not worth its time would hardly teach the models
        is_young = len(runs) < _FEWEST_RUNS and not self._problem.warm_start
        if decision.stop_reason and (is_again or not is_young):
            return decision.stop_reason
        if no_new is not None and not is_again:
            return no_new
        stage = Stage.AGAIN if is_again else Stage.SEARCH
        return Run(proposal.config, stage, str(proposal), seconds)

    def _used_up(self, runs: Sequence[Trial]) -> str | None:
        """Return why no run may follow, whatever it is worth."""
        most = self._settings.max_trials
        outcomes = {run.measurement.outcome for run in runs}
        if len(runs) >= most:
            return (
                "the only trial is used up"
                if most == 1
                else f"all {most} trials are used up"
            )
        if len(runs) >= _HOPELESS_TRIALS and outcomes <= {
            Outcome.TIMEOUT,
            Outcome.CRASHED,
        }:
            return f"the first {len(runs)} trials all timed out or crashed"
        return None

    def _seconds_for_a_trial(
        self, readings: Sequence[Trial], seconds_left: float
    ) -> float:
        """Return how long a trial may take.

        What would be delivered, or its own config, must still have a run after it.
        """
        if seconds_left == math.inf:
            return seconds_left
        choice = choose(self._problem, readings)
        if choice is None:
            return seconds_left
        unproven = self._unproven(choice, readings)
        reserved = sum(confirming_seconds(config, readings) for config in unproven)
        return min(seconds_left - reserved, longest_trial(seconds_left))

    def _unproven(self, choice: Choice, readings: Sequence[Trial]) -> list[FitConfig]:
        """List what has to run before the delivery: the answers once more, the baseline once.

        What would be missed most comes first, as there may not be time for all.
        """
        rated = rated_trials(readings)
        proven = {trial.config for trial in rated if trial.stage is not Stage.SEARCH}
        configs = [choice.fastest, choice.own]
        if not self._is_largest and all(
            t.config != self._problem.baseline for t in readings
        ):
            configs.insert(1, self._problem.baseline)
        wanted = dict.fromkeys(config for config in configs if config is not None)
        return [config for config in wanted if config not in proven]

    def _to_compare(
        self, choice: Choice, readings: Sequence[Trial], seconds: float
    ) -> tuple[FitConfig, ...]:
        """Return the baseline and the answers that are predicted to be faster.

        They are as many as a tune has time for.
        """
        baseline = self._problem.baseline
        if (
            self._is_largest
            or baseline_outcome(self._problem, readings) is not Outcome.OK
        ):
            return ()
        least = 1 / (1 - self._settings.options.tolerance)
        faster = [
            config
            for config in dict.fromkeys((choice.own, choice.fastest))
            if config
            and (choice.beliefs.speedup(config, baseline).ratio or 0.0) > least
        ]
        searched = [trial for trial in readings if trial.stage is Stage.SEARCH]
        further = [trial for trial in readings if trial.stage is not Stage.SEARCH]
        end = self._describing_seconds + _GRID_TRIALS * trial_seconds(searched)
        run_seconds = trial_seconds(further or searched)
        # the fastest is the last
        for answers in (faster, faster[-1:]):
            line = (baseline, *answers)
            if answers and seconds + ROUNDS * len(line) * run_seconds <= end:
                return line
        return ()


def _round_up(seconds: float) -> float:
    return 10.0 * math.ceil(seconds / 10)
