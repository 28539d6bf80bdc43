"""`max_seconds` holds for the whole tune, and leaves room for the rounds that show a gain; on a clock of the tests' own."""

import contextlib
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autofit.errors import NothingFitsError, NoTrialFinishedError
from autofit.records.description import Description
from autofit.records.result import LOOKS
from autofit.records.states import Outcome, Stage
from autofit.records.trial import Evidence, FitConfig, Measurement, Trial
from autofit.search.space import SearchSpace
from autofit.tuning import budget, engine
from autofit.tuning.problem import Problem
from autofit.tuning.record import no_result_error
from tests.fakes import BASELINE, DESCRIPTION, MIB, FakeLauncher, collect, make_request

END_SECONDS = 0.3
"""That ending a process at its deadline takes."""


class Timed(FakeLauncher):
    """Each process takes time on a clock of its own, and is ended at its deadline.

    Args:
        describing: seconds that describing takes.
        start: seconds of any trial before its steps.
        step: seconds of a step of 32 samples, in proportion to the batch.
        jitter: durations differ by up to this share, rates by a quarter of it.
        seed: of the jitter.
    """

    def __init__(self, describing=5.0, start=3.0, step=0.02, jitter=0.0, seed=0, **kwargs):
        super().__init__(**kwargs)
        self.now, self._describing, self._start, self._step = 0.0, describing, start, step
        self._jitter, self._seed = jitter, seed
        self.cut = []  # what was ended at its deadline

    def clock(self):
        return self.now

    def run(self, spec):
        result = yield from super().run(spec)
        seconds = self.seconds_of(spec)
        if seconds > spec.deadline_seconds:
            self.cut.append(spec)
            self.now += max(0.0, spec.deadline_seconds) + END_SECONDS
            return Measurement(Outcome.TIMEOUT, Evidence("ended at its deadline"), spec.deadline_seconds)
        self.now += seconds
        if isinstance(result, Description):
            return result
        if result.outcome is not Outcome.OK:
            return replace(result, seconds=seconds)
        rate = (result.samples_per_second or 0.0) * (1 + self.noise() * self._jitter / 4)
        return replace(result, seconds=seconds, step_seconds=self.step_of(spec), samples_per_second=rate, spread=0.05)

    def noise(self):
        """A number from -1 to 1 that changes from run to run."""
        return math.sin(12.9898 * (len(self.specs) + 1) + 78.233 * self._seed)

    def step_of(self, spec):
        return self._step * (spec.config.batch_size or 32) / 32

    def seconds_of(self, spec):
        if spec.role == "describe":
            return self._describing
        steps = max(spec.measure_seconds, (18 if spec.role == "confirm" else 10) * self.step_of(spec))
        return (self._start + steps) * (1 + self.noise() * self._jitter)


def timed_tune(tmp_path, monkeypatch, launcher, **changes):
    monkeypatch.setattr(budget, "monotonic", launcher.clock)
    return collect(engine.tune, make_request(tmp_path, **changes), launcher)


def pairs_of(record):
    """The rounds of the config that was last compared with the fastest one, or of that one."""
    challenger = record.fastest.challenger
    return (challenger or record.fastest).speedup.pairs


DURATIONS = {
    "max_seconds": st.floats(1, 900),
    "describing": st.floats(0.5, 40),
    "start": st.floats(0.5, 30),
    "step": st.floats(0.001, 1.0),
    "jitter": st.floats(0, 0.3),
    "seed": st.integers(0, 99),
}


@given(**{**DURATIONS, "jitter": st.sampled_from([0.0, 0.1, 0.3])})
@settings(max_examples=15, deadline=None)
def test_the_whole_tune_ends_within_max_seconds(tmp_path_factory, max_seconds, describing, start, step, jitter, seed):
    launcher, record = Timed(describing, start, step, jitter, seed), None
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(NoTrialFinishedError):
        _, record = timed_tune(tmp_path_factory.mktemp("tune"), patch, launcher, max_seconds=max_seconds)
    assert launcher.now <= 1.03 * max_seconds + END_SECONDS
    assert jitter > 0 or not any(spec.role == "confirm" for spec in launcher.cut)
    if record is None:
        assert launcher.now >= max_seconds
        return
    assert record.seconds == pytest.approx(launcher.now)
    compared = {run.config for run in record.runs if run.stage in (Stage.CHOSEN, Stage.BASELINE)}
    assert not record.fastest.confirmed or record.config in compared
    assert not record.speedup.is_shown or record.speedup.pairs >= LOOKS[0]


@given(**{**DURATIONS, "jitter": st.floats(0, 0.05)})
@settings(max_examples=10, deadline=None)
def test_three_rounds_run_whenever_three_trials_and_three_rounds_fit(
    tmp_path_factory, max_seconds, describing, start, step, jitter, seed
):
    launcher = Timed(describing, start, step, jitter, seed)
    # what three trials and three rounds of three configs take, of the largest batch that the search may reach with them
    largest = FitConfig(64 * (BASELINE.batch_size or 1), 4, 10, False)
    needed = describing + 12 * 1.1 * 1.3 * (start + 2.0 + 38 * step * (largest.batch_size or 1) / 32)
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("tune")
        record = timed_tune(path, patch, launcher, max_seconds=needed + max_seconds)[1]
    assert record.fastest.confirmed
    if record.config != BASELINE or record.fastest.challenger is not None:
        assert pairs_of(record) >= LOOKS[0]


def test_rounds_are_added_while_there_is_time_and_they_may_show_a_gain(tmp_path, monkeypatch):
    class Wavering(Timed):
        """The rates of confirming runs waver by a fifth from run to run, and of no config more than of another."""

        def run(self, spec):
            measured = yield from super().run(spec)
            if spec.role != "confirm":
                return measured
            number = sum(s.role == "confirm" for s in self.specs)
            return replace(measured, samples_per_second=1000.0 * (1.0 + 0.2 * (number % 3)))

    confirming = {}
    for max_seconds in (None, 1000.0, 120.0):
        launcher = Wavering()
        _, record = timed_tune(tmp_path / str(max_seconds), monkeypatch, launcher, max_seconds=max_seconds)
        assert not record.speedup.is_shown
        assert record.config == BASELINE
        challenger = record.fastest.challenger.speedup
        assert challenger.low < 1.0 < challenger.high
        confirming[max_seconds] = challenger.pairs
    assert confirming[None] == confirming[1000.0]
    assert LOOKS[0] == confirming[120.0] <= confirming[None]


def test_a_run_that_the_end_cuts_short_counts_neither_as_a_run_nor_against_its_config(tmp_path, monkeypatch):
    class Stalling(Timed):
        """The fourth confirming run hangs."""

        def seconds_of(self, spec):
            hangs = spec.role == "confirm" and sum(s.role == "confirm" for s in self.specs) == 4
            return 1e9 if hangs else super().seconds_of(spec)

    launcher = Stalling()
    _, record = timed_tune(tmp_path, monkeypatch, launcher, max_seconds=150.0)
    assert launcher.now <= 150.0 + END_SECONDS
    assert all(run.measurement.outcome is Outcome.OK for run in (*record.trials, *record.runs))
    assert pairs_of(record) == 1  # a round counts as a whole
    assert not record.fastest.confirmed
    assert record.fastest.needed_seconds > 150.0


def test_without_time_for_a_confirming_run_the_result_is_said_not_to_be_confirmed(tmp_path, monkeypatch):
    launcher = Timed(describing=5.0, start=6.0)
    _, record = timed_tune(tmp_path, monkeypatch, launcher, max_seconds=14.0)
    assert not record.fastest.confirmed
    assert record.runs == ()
    assert record.speedup.ratio is None or record.config == BASELINE
    assert not record.speedup.is_shown


def test_seconds_that_end_before_any_trial_does_are_named(tmp_path, monkeypatch):
    with pytest.raises(NoTrialFinishedError, match=r"max_seconds \(4\)"):
        timed_tune(tmp_path / "a", monkeypatch, Timed(describing=5.0), max_seconds=4)
    with pytest.raises(NoTrialFinishedError, match=r"max_seconds \(1\)"):
        timed_tune(tmp_path / "b", monkeypatch, Timed(describing=0.5), max_seconds=1)


def test_that_nothing_fits_is_concluded_only_where_the_smallest_batch_was_tried(tmp_path):
    request = make_request(tmp_path, host_bytes=50 * MIB, max_seconds=30)
    evidence = Evidence("died by SIGKILL; the kernel killed 1 process(es) for memory")

    for batch_sizes, kind in (((8, 64), NoTrialFinishedError), ((16, 64), NothingFitsError), (None, NothingFitsError)):
        trials = [Trial(FitConfig(size), Measurement(Outcome.HOST_OOM, evidence, 1.0)) for size in (64, 16)]
        problem = Problem(request, DESCRIPTION, SearchSpace(batch_sizes), BASELINE)
        error = no_result_error(problem, budget.Budget(request.settings), trials, "all 2 trials are used up")
        assert type(error) is kind
        tried = "all 2 trials are used up before a trial finished: the smallest batch size tried, 16, ran out of memory"
        assert (tried in str(error) and evidence.reason in str(error)) is (kind is NoTrialFinishedError)


def test_the_search_leaves_the_time_that_is_kept(tmp_path, monkeypatch):
    launcher = Timed()
    _, record = timed_tune(tmp_path, monkeypatch, launcher, max_seconds=90.0, max_trials=50, tolerance=0.0)
    assert "max_seconds (90)" in record.stop_reason
    assert record.same_batch.confirmed
    assert 60.0 < launcher.now <= 90.0


def test_the_first_trial_has_a_rival_although_that_takes_longer(tmp_path, monkeypatch):
    launcher = Timed(start=4.4, step=0.12)
    _, record = timed_tune(tmp_path, monkeypatch, launcher, max_seconds=72.0)
    assert not launcher.cut
    assert len(record.trials) >= 2
    assert record.same_batch.confirmed
    assert record.fastest.confirmed or record.fastest.needed_seconds > 72.0


def test_a_baseline_too_slow_for_a_pair_takes_no_time_from_the_search(tmp_path, monkeypatch):
    launcher = Timed(start=3.0, step=3.0)
    _, record = timed_tune(tmp_path, monkeypatch, launcher, max_seconds=90.0, space={"batch_size": {"min": 1, "max": 16}})
    assert BASELINE not in [run.config for run in record.runs]
    assert len(record.trials) == 2  # a third one, larger or slower, would leave no time to confirm any config
    assert record.fastest.needed_seconds > 90.0
    assert launcher.now <= 90.0


def test_a_hang_costs_its_pause_and_the_search_goes_on_without_what_is_like_it(tmp_path, monkeypatch):
    class Hanging(Timed):
        """Several threads hang."""

        def run(self, spec):
            if spec.role == "describe" or spec.config.workers == 1 or spec.config.use_multiprocessing:
                return (yield from super().run(spec))
            self.now += 15.0
            return Measurement(Outcome.TIMEOUT, Evidence("hung", hung=True), 15.0)

    launcher = Hanging(start=2.0)
    _, record = timed_tune(tmp_path, monkeypatch, launcher, max_seconds=240.0)
    hung = [trial for trial in record.trials if trial.measurement.outcome is Outcome.TIMEOUT]
    assert len(hung) == 1
    assert len(record.trials) >= 5
    assert record.fastest.confirmed
    assert launcher.now <= 240.0
