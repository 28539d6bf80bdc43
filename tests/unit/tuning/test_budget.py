"""`max_seconds` holds for the whole tune, on a clock of the tests' own.

It leaves room for a run of what is delivered.
"""

import contextlib
import math
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autofit.errors import NothingFitsError, NoTrialFinishedError
from autofit.records.description import Description
from autofit.records.knobs import FitConfig
from autofit.records.result import ROUNDS
from autofit.records.states import Outcome, Phase
from autofit.records.trial import Evidence, Measurement, Trial
from autofit.search.space import SearchSpace
from autofit.tuning import budget, engine
from autofit.tuning.problem import Problem
from autofit.tuning.record import no_result_error
from tests.fakes import BASELINE, DESCRIPTION, MIB, FakeLauncher, collect, make_request

END_SECONDS = 0.3
"""That ending a process at its deadline takes."""
FEW = {
    "batch_size": [8, 32, 128, 512],
    "workers": [1, 4],
    "max_queue_size": [10],
    "use_multiprocessing": [False],
}


class Timed(FakeLauncher):
    """Each process takes time on a clock of its own, and is ended at its deadline.

    Args:
        describing: seconds that describing takes.
        start: seconds of any trial before its steps.
        step: seconds of a step of 32 samples, in proportion to the batch.
        jitter: durations differ by up to this share, rates by a quarter of it.
        seed: of the jitter.
        hangs: whether a trial hangs, by its spec.
    """

    def __init__(
        self,
        describing=5.0,
        start=3.0,
        step=0.02,
        jitter=0.0,
        seed=0,
        hangs=lambda spec: False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.now = 0.0
        self._describing = describing
        self._start = start
        self._step = step
        self._jitter = jitter
        self._seed = seed
        self._hangs = hangs
        self.cut = []  # what was ended at its deadline

    def run(self, spec, *others):
        result = super().run(spec, *others)
        noise = math.sin(
            12.9898 * (len(self.specs) + 1) + 78.233 * self._seed
        )  # from -1 to 1
        step = self._step * (spec.config.batch_size or 32) / 32
        steps = max(spec.measure_seconds, (18 if spec.role == "confirm" else 10) * step)
        seconds = (
            self._describing
            if spec.role == "describe"
            else (self._start + steps) * (1 + noise * self._jitter)
        )
        if self._hangs(spec):
            seconds = 1e9
        if seconds > spec.deadline_seconds:
            self.cut.append(spec)
            self.now += max(0.0, spec.deadline_seconds) + END_SECONDS
            return Measurement(
                Outcome.TIMEOUT,
                Evidence("ended at its deadline"),
                spec.deadline_seconds,
            )
        self.now += seconds
        if isinstance(result, Description):
            return result
        if result.samples_per_second is None:
            return replace(result, seconds=seconds)
        rate = result.samples_per_second * (1 + noise * self._jitter / 4)
        return replace(
            result,
            seconds=seconds,
            step_seconds=step,
            samples_per_second=rate,
            spread=0.05,
        )

    def tune(self, tmp_path, **changes):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(budget, "monotonic", lambda: self.now)
            return collect(
                engine.tune, make_request(tmp_path, **{"space": FEW, **changes}), self
            )[1]


DURATIONS = {
    "max_seconds": st.floats(1, 900),
    "describing": st.floats(0.5, 40),
    "start": st.floats(0.5, 30),
    "step": st.floats(0.001, 1.0),
    "seed": st.integers(0, 99),
}


@given(**DURATIONS, jitter=st.sampled_from([0.0, 0.1, 0.3]))
@settings(max_examples=10)
def test_the_whole_tune_ends_within_max_seconds(
    tmp_path_factory, max_seconds, **durations
):
    launcher = Timed(**durations)
    record = None
    with contextlib.suppress(NoTrialFinishedError):
        record = launcher.tune(tmp_path_factory.mktemp("tune"), max_seconds=max_seconds)
    assert launcher.now <= 1.03 * max_seconds + END_SECONDS
    assert durations["jitter"] > 0 or not any(
        spec.role == "confirm" for spec in launcher.cut
    )
    if record is None:
        assert launcher.now >= max_seconds
        return
    assert record.seconds == pytest.approx(launcher.now)
    assert not record.fastest.confirmed or record.config in {
        run.config for run in record.runs
    }
    assert not record.speedup.is_shown or record.speedup.pairs >= ROUNDS


@given(**DURATIONS, jitter=st.floats(0, 0.05))
@settings(max_examples=6)
def test_what_is_delivered_has_run_again_whenever_three_trials_and_two_runs_fit(
    tmp_path_factory, max_seconds, **durations
):
    # what three trials and a run of both answers take, of the largest batch
    longest = (
        durations["start"] + 2.0 + 38 * durations["step"] * max(FEW["batch_size"]) / 32
    )
    needed = durations["describing"] + 5 * 1.1 * 1.3 * longest
    record = Timed(**durations).tune(
        tmp_path_factory.mktemp("tune"), max_seconds=needed + max_seconds
    )
    assert record.fastest.confirmed
    assert record.same_batch.confirmed


def test_a_run_that_the_end_cuts_short_counts_neither_as_a_run_nor_against_its_config(
    tmp_path,
):
    launcher = Timed(
        hangs=lambda spec: (
            spec.role == "confirm" and len(launcher.configs("confirm")) == 2
        )
    )
    record = launcher.tune(tmp_path, max_seconds=150.0)
    assert launcher.now <= 150.0 + END_SECONDS
    assert all(
        run.measurement.outcome is Outcome.OK for run in (*record.trials, *record.runs)
    )
    assert len(record.runs) == 1  # the one that was cut is none of them
    assert not record.fastest.speedup.is_shown
    assert record.fastest.probability >= 0.8
    assert record.fastest.needed_seconds > 150.0


def test_an_answer_that_hangs_until_the_end_is_not_delivered(tmp_path):
    class Hung(Timed):
        def run(self, spec, *others):
            result = super().run(spec, *others)
            is_hung = spec in self.cut and spec.role == "confirm"
            return (
                replace(result, evidence=Evidence("hung", hung=True))
                if is_hung
                else result
            )

    launcher = Hung(
        hangs=lambda spec: (
            spec.role == "confirm" and spec.config.batch_size > BASELINE.batch_size
        )
    )
    record = launcher.tune(tmp_path, max_seconds=150.0)
    (hung,) = [run for run in record.runs if run.measurement.evidence.hung]
    assert hung in record.trials
    assert record.config != hung.config


def test_what_is_repeated_with_a_new_server_ends_with_max_seconds_too(tmp_path):
    class Lost(Timed):
        def run(self, spec, *others):
            result = super().run(spec, *others)
            lost = Measurement(Outcome.CRASHED, Evidence("lost", server_lost=True), 5.0)
            return lost if len(self.specs) == 2 else result

    launcher = Lost(hangs=lambda spec: len(launcher.specs) == 3)
    with pytest.raises(NoTrialFinishedError):
        launcher.tune(tmp_path, max_seconds=30.0)
    assert launcher.now <= 30.0 + END_SECONDS


def test_without_time_for_a_confirming_run_the_result_says_so_and_names_the_seconds(
    tmp_path,
):
    record = Timed(start=6.0).tune(tmp_path, max_seconds=14.0)
    assert record.runs == ()
    assert not record.fastest.confirmed
    assert not record.speedup.is_shown
    assert record.fastest.needed_seconds > 14.0
    enough = Timed(start=6.0).tune(
        tmp_path / "enough", max_seconds=record.fastest.needed_seconds
    )
    assert enough.fastest.confirmed


@pytest.mark.parametrize("max_seconds", [25.0, 35.0])
def test_a_gain_that_there_is_no_time_to_show_names_its_seconds(tmp_path, max_seconds):
    record = Timed().tune(tmp_path / "short", max_seconds=max_seconds)
    assert record.fastest.config != BASELINE
    assert record.fastest.speedup.pairs == 0
    assert (
        record.fastest.needed_seconds == record.same_batch.needed_seconds > max_seconds
    )


@pytest.mark.parametrize(
    ("describing", "start", "max_seconds"),
    [(5.0, 3.0, 4), (0.5, 3.0, 1), (5.0, 200.0, 60)],
)
def test_seconds_that_end_before_any_trial_does_are_named_with_more_that_are_likely_to_be_enough(
    tmp_path, describing, start, max_seconds
):
    launcher = Timed(describing, start)
    with pytest.raises(
        NoTrialFinishedError, match=rf"max_seconds \({max_seconds}\)"
    ) as raised:
        launcher.tune(tmp_path, max_seconds=max_seconds)
    (named,) = map(int, re.findall(r"Raise it to (\d+)$", str(raised.value)))
    longest = max(spec.deadline_seconds for spec in launcher.cut)
    assert 10 > named - (max_seconds + 5 * longest) >= -END_SECONDS


@pytest.mark.parametrize(
    ("phase", "where"),
    [
        (
            Phase.BUILDING,
            "; building the model took 16 s, which each trial does anew. Raise",
        ),
        (
            Phase.OPENING,
            "; opening the data took 16 s, which each trial does anew. Raise",
        ),
        (Phase.FIRST_STEP, "; running the first step took 16 s. Raise"),
    ],
)
def test_seconds_that_end_before_any_trial_does_are_told_with_where_they_went(
    tmp_path, phase, where
):
    spent = {Phase.STARTING: 1.0, phase: 8.0}
    cut = Measurement(Outcome.TIMEOUT, Evidence("ended"), 9.0, phase_seconds=spent)
    request = make_request(tmp_path, max_seconds=20)
    assert where in budget.Budget(request.settings).too_short(
        [cut, cut], "a trial finished"
    )


@pytest.mark.parametrize(
    ("batch_sizes", "kind"),
    [
        ((8, 64), NoTrialFinishedError),
        ((16, 64), NothingFitsError),
        (None, NothingFitsError),
    ],
)
def test_that_nothing_fits_is_concluded_only_where_the_smallest_batch_was_tried(
    tmp_path, batch_sizes, kind
):
    request = make_request(tmp_path, host_bytes=50 * MIB, max_seconds=30)
    oom = Measurement(Outcome.HOST_OOM, Evidence("died by SIGKILL"), 1.0)
    trials = [Trial(FitConfig(size), oom) for size in (64, 16)]
    problem = Problem(request, DESCRIPTION, SearchSpace(batch_sizes), BASELINE)
    error = no_result_error(
        problem, budget.Budget(request.settings), trials, "it ended"
    )
    assert type(error) is kind
    assert "16" in str(error)


@pytest.mark.parametrize(
    ("stacks", "named"), [(True, "128 steps in a call"), (False, "of 8 needs")]
)
def test_steps_in_a_call_are_blamed_where_a_call_holds_their_batches(
    tmp_path, stacks, named
):
    request = make_request(tmp_path, host_bytes=50 * MIB, max_seconds=30)
    oom = Measurement(Outcome.HOST_OOM, Evidence("full"), 1.0, host_peak_bytes=51 * MIB)
    description = replace(DESCRIPTION, stacks_steps=stacks)
    problem = Problem(request, description, SearchSpace((8,)), BASELINE)
    trials = [Trial(FitConfig(8, steps_per_execution=128), oom)]
    error = str(
        no_result_error(problem, budget.Budget(request.settings), trials, "it ended")
    )
    assert named in error
    assert ("fewer steps_per_execution or a smaller batch_size" in error) == stacks
