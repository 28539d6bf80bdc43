"""The loop, above the process wall: what is tried, stored, chosen, confirmed, demoted, resumed and said."""

import io
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console

from autofit.errors import NothingFitsError, NoTrialFinishedError, UsageError, UserCodeError
from autofit.records.conditions import Conditions
from autofit.records.description import Description, Footprint
from autofit.records.events import Activity, Described, Notice, TrialEnded
from autofit.records.machine import ON_CPU, Device, Placement
from autofit.records.result import CallSource, DataForm, DecidedBy
from autofit.records.states import Outcome, Phase, Role
from autofit.records.trial import Evidence, FitConfig, Limits, Measurement, Trial, TrialSpec
from autofit.report import choice, snippet
from autofit.report.advice import advice
from autofit.report.columns import Output
from autofit.report.console.summary import print_trials, summarise
from autofit.report.html import content, page, timeline
from autofit.search import selection
from autofit.search.config_arrays import ConfigArrays
from autofit.search.decision import Decision, Proposal, Reason
from autofit.search.feasibility import dominated_by, hardly_faster
from autofit.search.space import build_space
from autofit.storage import result_files
from autofit.tuning import tuner
from tests.fakes import BASELINE, DESCRIPTION, KNOBS, MACHINE, MIB, FakeLauncher, collect, make_request, tune

FIRST = FitConfig(8, 1, 10, False)
"""What is tried first where nothing is known of the memory."""


def searched(events):
    return [event.trial for event in events if isinstance(event, TrialEnded) and event.stage == "search"]


def test_a_tune_finds_what_is_faster_than_the_baseline_and_confirms_it(tmp_path):
    launcher = FakeLauncher()
    events, record = collect(tune, make_request(tmp_path, max_trials=20), launcher)
    trials = searched(events)
    assert 3 <= len(trials) < 20
    assert "expected to gain" in record.stop_reason
    assert trials[0].config == FIRST
    assert isinstance(next(e for e in events if not isinstance(e, Activity)), Described)
    space = build_space(None, KNOBS, cores=4, sample_count=2000)

    def rate(config):
        return launcher.measure(TrialSpec(Role.MEASURE, config, Limits(None, 8192 * MIB), 60.0)).samples_per_second or 0

    assert record.samples_per_second >= 0.96 * max(rate(config) for config in space.configs())
    assert record.speedup.ratio == pytest.approx(record.samples_per_second / rate(BASELINE))
    assert record.speedup.low <= record.speedup.ratio <= record.speedup.high
    assert record.trials == tuple(trials)
    assert record.config in [spec.config for spec in launcher.specs if spec.role == "confirm"]


def test_no_config_is_tried_twice(tmp_path):
    events, _ = collect(tune, make_request(tmp_path, max_trials=25, tolerance=0.0), FakeLauncher())
    configs = [trial.config for trial in searched(events)]
    assert len(configs) == len(set(configs)) == 25


@pytest.mark.parametrize(
    "limits", [{"device_bytes": 100 * MIB}, {"host_bytes": 600 * MIB}, {"device_bytes": 80 * MIB, "host_bytes": 600 * MIB}]
)
def test_nothing_above_a_known_oom_is_tried(tmp_path, limits):
    events, record = collect(tune, make_request(tmp_path, max_trials=16, **limits), FakeLauncher(cliff=32))
    trials = searched(events)
    assert any(trial.measurement.outcome.is_oom for trial in trials)
    for later, trial in enumerate(trials):
        for oom in trials[:later]:
            assert not dominated_by(ConfigArrays.of([trial.config]), oom.config, oom.measurement.outcome)[0]
    assert (record.device_peak_bytes or 0) <= (limits.get("device_bytes") or 2**60)
    assert record.host_peak_bytes <= limits.get("host_bytes", 2**60)


@pytest.mark.parametrize("limits", [{"device_bytes": 330 * MIB}, {"host_bytes": 900 * MIB}])
def test_the_frontier_is_reached_without_an_oom(tmp_path, limits):
    events, _ = collect(tune, make_request(tmp_path, max_trials=12, **limits), FakeLauncher())
    trials = searched(events)
    assert not any(trial.measurement.outcome.is_oom for trial in trials)
    use = [t.measurement.device_peak_bytes / MIB / 330 for t in trials]
    if "host_bytes" in limits:
        use = [t.measurement.host_peak_bytes / MIB / 900 for t in trials]
    assert max(use) > 0.7


def test_a_batch_that_cannot_fit_is_said_before_anything_is_trained(tmp_path):
    launcher = FakeLauncher(
        {"describe": replace(DESCRIPTION, footprints=(Footprint(1, {"weights": 90 * MIB}, "walk", 0.2),))}
    )
    with pytest.raises(NothingFitsError, match=r"a batch of 1 needs more than 54\.0 MiB .*nothing was trained.* 50\.0 MiB"):
        collect(tune, make_request(tmp_path, device_bytes=50 * MIB), launcher)
    assert [spec.role for spec in launcher.specs] == ["describe"]


def test_confirming_runs_are_interleaved_and_change_order(tmp_path):
    launcher = FakeLauncher()
    _, record = collect(tune, make_request(tmp_path), launcher)
    order = [spec.config for spec in launcher.specs if spec.role == "confirm"]
    won, base = record.config, BASELINE
    assert order == [won, base, base, won]


def test_a_winner_that_fails_is_demoted_and_the_next_confirmed(tmp_path):
    _, first = collect(tune, make_request(tmp_path / "a"), FakeLauncher())
    launcher = FakeLauncher({("confirm", first.config): Outcome.DEVICE_OOM})
    _, second = collect(tune, make_request(tmp_path / "b"), launcher)
    assert second.config != first.config
    assert second.config.batch_size < first.config.batch_size
    assert [t.measurement.outcome for t in second.trials if t.config == first.config] == [Outcome.OK, Outcome.DEVICE_OOM]


class Clocked(FakeLauncher):
    """Says when each trial began."""

    def measure(self, spec):
        return replace(super().measure(spec), started_at=1e9 + 10 * len(self.specs))


def test_a_run_that_fails_is_counted_once_and_not_as_one_of_the_search(tmp_path):
    class Failing(Clocked):
        def run(self, spec):
            measurement = yield from super().run(spec)
            if spec.role == "confirm" and sum(s.role == "confirm" for s in self.specs) == 1:
                full = Measurement(Outcome.DEVICE_OOM, Evidence("device full"), 5.0, phase_seconds={Phase.TRAINING: 5.0})
                return replace(full, started_at=measurement.started_at)
            return measurement

    _, record = collect(tune, make_request(tmp_path), Failing())
    (failed,) = [run for run in record.runs if run.measurement.outcome is Outcome.DEVICE_OOM]
    assert failed in record.trials
    assert failed not in record.searched
    assert len(record.searched) == len(record.trials) - 1 == 6
    assert [bar.stage for bar in timeline.lay_out(record)[0] if bar.trial == failed] == ["chosen"]
    assert sum(row.mark == "oom" for row in content.trial_table(record, Output.PAGE)[1]) == 1
    assert content.origin(record).count("6 trials of the search") == 1
    console = Console(width=80, file=io.StringIO())
    print_trials(record, console)
    assert console.file.getvalue().count("device OOM") == 1
    summarise(record, console)
    assert "all 6 trials are spent; 6 trials" in console.file.getvalue()


def test_a_baseline_that_fails_leaves_no_ratio_but_is_named(tmp_path):
    _, record = collect(tune, make_request(tmp_path, baseline={"batch_size": 1024}, device_bytes=500 * MIB), FakeLauncher())
    assert record.speedup.ratio is None
    assert record.speedup.baseline_outcome is Outcome.DEVICE_OOM
    assert record.speedup.baseline.batch_size == 1024


class Deceptive(FakeLauncher):
    """Configs other than the baseline read well in the search, and confirm at these multiples of the baseline's rate."""

    def __init__(self, *multiples):
        super().__init__()
        self._multiples, self._confirmed = multiples, 0

    def run(self, spec):
        measured = yield from super().run(spec)
        if spec.role != "confirm":
            return measured
        rate = 1000.0
        if spec.config != BASELINE:
            rate *= self._multiples[self._confirmed % len(self._multiples)]
            self._confirmed += 1
        return replace(measured, samples_per_second=rate)


@pytest.mark.parametrize("multiples", [(0.58, 0.58), (1.5, 0.7), (1.2, 0.9, 1.0), (1.01,)])
def test_the_baseline_keeps_its_place_unless_the_choice_is_shown_to_be_faster(tmp_path, multiples):
    events, record = collect(tune, make_request(tmp_path), Deceptive(*multiples))
    assert record.config == BASELINE
    assert record.data_kwargs["batch_size"] == 32
    assert (record.speedup.ratio, record.speedup.is_shown) == (1.0, False)
    challenger = record.choice.challenger
    assert challenger.config != BASELINE
    assert 2 <= challenger.speedup.pairs <= 5
    assert any("no gain shown" in event.text for event in events if isinstance(event, Notice))
    assert choice.gain(record).value == choice.NO_GAIN
    highest = max(record.searched, key=lambda trial: trial.measurement.samples_per_second).config
    passed = record.choice.passed_over
    assert (passed is not None and passed.decided_by is DecidedBy.CONFIRMATION) == (highest != challenger.config)


def test_a_choice_that_is_shown_to_be_faster_takes_the_place_of_the_baseline(tmp_path):
    _, record = collect(tune, make_request(tmp_path), Deceptive(1.3, 1.35, 1.32))
    assert record.config != BASELINE
    assert record.speedup.is_shown
    assert record.choice.challenger is None


def test_a_baseline_outside_the_space_leaves_the_choice_without_a_gain(tmp_path):
    space = {"batch_size": [64, 128], "workers": [4], "max_queue_size": [10], "use_multiprocessing": [False]}
    _, record = collect(tune, make_request(tmp_path, space=space), Deceptive(1.5, 0.7))
    assert record.config.batch_size in (64, 128)
    assert not record.speedup.is_shown
    assert choice.gain(record).value == choice.NO_GAIN


def test_at_equal_speed_the_batch_of_the_user_is_kept(tmp_path):
    class Level(FakeLauncher):
        """Every config is as fast as every other."""

        def measure(self, spec):
            m = super().measure(spec)
            level = {"compute_samples_per_second": 1000.0, "input_samples_per_second": 4000.0}
            return m if m.samples_per_second is None else replace(m, samples_per_second=1000.0, **level)

    _, record = collect(tune, make_request(tmp_path, baseline={"batch_size": 64}, max_trials=12), Level())
    assert record.config == FitConfig(64, 1, 10, False)


def test_a_baseline_that_is_best_is_compared_with_nothing(tmp_path):
    space = {"batch_size": [16], "workers": [1], "max_queue_size": [10], "use_multiprocessing": [False]}
    launcher = FakeLauncher()
    _, record = collect(tune, make_request(tmp_path, space=space, baseline={"batch_size": 16}), launcher)
    assert record.config.batch_size == 16
    assert record.speedup.ratio == 1.0
    assert "tried" in record.stop_reason
    assert {spec.config for spec in launcher.specs if spec.role == "confirm"} == {record.config}


def test_finished_trials_are_kept_when_a_tune_is_broken_off(tmp_path):
    seen = []

    def interrupt(event):
        seen.append(event)
        if sum(isinstance(e, TrialEnded) for e in seen) == 3 and isinstance(event, Activity):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(make_request(tmp_path, max_trials=8), FakeLauncher(), interrupt)
    launcher = FakeLauncher()
    resumed, record = collect(tune, make_request(tmp_path, max_trials=8), launcher)
    described = next(e for e in resumed if isinstance(e, Described))
    assert len(described.kept) == 3
    assert record.trials[:3] == described.kept
    assert record.trials[3:] == tuple(searched(resumed))
    assert len({trial.config for trial in record.trials}) == len(record.trials) <= 8


def test_the_same_question_is_answered_from_the_store(tmp_path):
    _, first = collect(tune, make_request(tmp_path), FakeLauncher())
    launcher = FakeLauncher()
    events, second = collect(tune, make_request(tmp_path), launcher)
    assert second == first
    assert launcher.specs == []
    (notice,) = [event.text for event in events]
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d .*\(CPU, keras 3\); --fresh", notice)


def test_an_answer_that_does_not_fit_what_is_free_now_is_asked_anew(tmp_path):
    asked = {"limits_asked": ("90%", "80%")}
    collect(tune, make_request(tmp_path, **asked), FakeLauncher())
    launcher = FakeLauncher()
    _, record = collect(tune, make_request(tmp_path, device_bytes=40 * MIB, **asked), launcher)
    assert record.device_peak_bytes <= 40 * MIB


def test_a_model_that_has_changed_behind_the_same_sources_forgets_its_trials(tmp_path):
    collect(tune, make_request(tmp_path), FakeLauncher())
    launcher = FakeLauncher({"describe": replace(DESCRIPTION, fingerprint="another model")})
    events, _ = collect(tune, make_request(tmp_path, max_trials=7), launcher)
    assert not next(e for e in events if isinstance(e, Described)).kept
    assert any("are deleted" in e.text for e in events if isinstance(e, Notice))


TF_DATA = replace(
    DESCRIPTION,
    input_kind="tf.data",
    knobs={"batch_size": "batch_size", "workers": "num_parallel_calls", "max_queue_size": "prefetch"},
    defaults={"batch_size": 64, "workers": -1, "max_queue_size": -1},
)


class Autotuned(FakeLauncher):
    """`tf.data` that is fastest with AUTOTUNE."""

    def run(self, spec):
        self.specs.append(spec)
        yield "working"
        return TF_DATA if spec.role == "describe" else self.measure(spec)

    def measure(self, spec):
        config = spec.config
        threads = 4 if config.workers == -1 else min(config.workers, 2)
        queue = 4 if config.max_queue_size == -1 else config.max_queue_size
        return super().measure(replace(spec, config=FitConfig(config.batch_size, threads, queue, False)))


def test_what_the_data_uses_now_is_the_baseline(tmp_path):
    launcher = Autotuned()
    _, record = collect(tune, make_request(tmp_path, max_trials=12), launcher)
    assert launcher.specs[0].config == FitConfig()  # described as it is written
    assert record.speedup.baseline == FitConfig(64, -1, -1)
    assert record.config.workers == -1
    assert record.data_kwargs["num_parallel_calls"] == -1
    assert {trial.config.workers for trial in record.trials} > {-1}
    _, asked = collect(tune, make_request(tmp_path, baseline={"workers": 2}), Autotuned())
    assert asked.speedup.baseline == FitConfig(64, 2, -1)


def test_a_tune_with_autotune_is_drawn_and_resumed(tmp_path):
    _, record = collect(tune, make_request(tmp_path, max_trials=4), Autotuned())
    events, resumed = collect(tune, make_request(tmp_path, max_trials=7), Autotuned())
    assert next(e for e in events if isinstance(e, Described)).kept == record.trials
    assert result_files.decode(result_files.encode(resumed)) == resumed
    assert page.render(resumed)
    assert "auto thr" in {field.text for row in content.trial_table(resumed, Output.PAGE)[1] for field in row.fields}


def test_autotune_is_an_error_where_the_data_is_no_tf_data(tmp_path):
    request = make_request(tmp_path, space={"workers": [-1, 2]})
    with pytest.raises(UsageError, match=r"tf\.data\.Dataset alone"):
        collect(tune, request, FakeLauncher())


def test_large_batches_that_leave_few_updates_are_not_searched_which_is_said_once(tmp_path):
    events, record = collect(tune, make_request(tmp_path, min_updates=10, max_trials=12), FakeLauncher())
    assert max(trial.config.batch_size for trial in record.trials) <= 200
    notices = [e.text for e in events if isinstance(e, Notice) and "updates" in e.text]
    assert len(notices) == 1
    assert "above 200" in notices[0]
    assert "min_updates: 1" in notices[0]
    events, record = collect(tune, make_request(tmp_path, min_updates=1, max_trials=12), FakeLauncher())
    assert max(trial.config.batch_size for trial in record.trials) > 200
    assert not [e for e in events if isinstance(e, Notice) and "updates" in e.text]


def test_a_bound_that_leaves_nothing_out_is_not_mentioned(tmp_path):
    request = make_request(tmp_path, min_updates=10, space={"batch_size": [8, 16, 64]})
    events, _ = collect(tune, request, FakeLauncher())
    assert not [e for e in events if isinstance(e, Notice)]


def test_the_baseline_may_leave_few_updates(tmp_path):
    request = make_request(tmp_path, min_updates=10, baseline={"batch_size": 512}, max_trials=12)
    _, record = collect(tune, request, FakeLauncher())
    assert record.speedup.baseline.batch_size == 512
    assert {trial.config.batch_size for trial in record.trials if trial.config.batch_size > 200} <= {512}


def test_the_sample_count_of_the_user_bounds_endless_data(tmp_path):
    class Endless(FakeLauncher):
        def run(self, spec):
            made = yield from super().run(spec)
            return replace(made, sample_count=None) if isinstance(made, Description) else made

    _, record = collect(tune, make_request(tmp_path, min_updates=10, sample_count=500), Endless())
    assert max(trial.config.batch_size for trial in record.trials) <= 50


def test_a_result_with_few_updates_answers_only_who_allowed_them(tmp_path):
    _, wide = collect(tune, make_request(tmp_path, min_updates=1, max_trials=12), FakeLauncher())
    assert wide.config.batch_size > 200
    events, record = collect(tune, make_request(tmp_path, min_updates=10, max_trials=12), FakeLauncher())
    assert record.config.batch_size <= 200
    kept = next(e for e in events if isinstance(e, Described)).kept
    assert kept == tuple(trial for trial in wide.trials if trial.config.batch_size <= 200)
    events, again = collect(tune, make_request(tmp_path, min_updates=1, max_trials=12), FakeLauncher())
    assert again.config == wide.config
    assert len(events) == 1


LOOSE = Limits(None, 8192 * MIB)
GPU = Device(0, "a GPU", "GPU-0", 8192 * MIB, 8000 * MIB, driver="550.54")


@pytest.mark.parametrize(
    "changes",
    [
        {"workload_fingerprint": "another"},
        {"limits_asked": ("80%", "80%")},
        {"limits_asked": ("90%", "6GiB")},
        {"space": {"workers": [1, 2]}},
        {"space": {"workers": {"min": 1, "max": 2}}},
        {"baseline": {"batch_size": 16}},
        {"max_batch_size": 64},
        {"effective_batch_size": 256},
        {"environment": {"tensorflow": "2.22", "keras": "3.15"}},
        {"environment": {"tensorflow": "2.21", "keras": "3.16"}},
        {"environment": {"tensorflow": "2.21", "keras": "3.15", "XLA_FLAGS": "--xla_cpu"}},
        {"machine": replace(MACHINE, cores=8)},
        {"machine": replace(MACHINE, memory_bytes=2**40)},
        {"placement": ON_CPU},
        {"placement": Placement.on(replace(GPU, name="another GPU"))},
        {"placement": Placement.on(replace(GPU, total_bytes=2**40))},
        {"placement": Placement.on(replace(GPU, driver="560.1"))},
    ],
)
def test_what_changes_the_answer_changes_the_fingerprint(tmp_path, changes):
    asked = {
        "placement": Placement.on(GPU),
        "limits_asked": ("90%", "80%"),
        "environment": {"tensorflow": "2.21", "keras": "3.15"},
    }
    assert make_request(tmp_path, **asked | changes).fingerprint() != make_request(tmp_path, **asked).fingerprint()


@pytest.mark.parametrize(
    "changes",
    [
        {"machine": replace(MACHINE, available_bytes=2**30, host="another")},
        {"placement": Placement.on(replace(GPU, free_bytes=2**30, index=1, uuid="GPU-1", held_by=("python holds 1 GiB",)))},
        {"fresh": True},
        {"storage": "elsewhere.db"},
        {"device_bytes": 100 * MIB},
        {"max_trials": 30},
    ],
)
def test_nothing_else_changes_the_fingerprint(tmp_path, changes):
    asked = {"placement": Placement.on(GPU), "limits_asked": ("90%", "80%")}
    assert make_request(tmp_path, **asked | changes).fingerprint() == make_request(tmp_path, **asked).fingerprint()


@pytest.mark.parametrize(
    "changes", [{"device_bytes": 70 * MIB}, {"space": {"workers": [1, 2]}}, {"workload_fingerprint": "y"}]
)
def test_a_changed_question_is_another(tmp_path, changes):
    collect(tune, make_request(tmp_path), FakeLauncher())
    launcher = FakeLauncher()
    events, _ = collect(tune, make_request(tmp_path, **changes), launcher)
    assert not next(e for e in events if isinstance(e, Described)).kept
    assert any(spec.role == "measure" for spec in launcher.specs)


def test_fresh_forgets(tmp_path):
    once, again = FakeLauncher(), FakeLauncher()
    collect(tune, make_request(tmp_path), once)
    collect(tune, make_request(tmp_path, fresh=True), again)
    assert [(spec.role, spec.config) for spec in again.specs] == [(spec.role, spec.config) for spec in once.specs]


def test_an_error_of_the_users_stops_everything_and_is_tried_again_next_time(tmp_path):
    launcher = FakeLauncher({FIRST: Outcome.ERROR, BASELINE: Outcome.ERROR})
    with pytest.raises(UserCodeError, match="boom"):
        collect(tune, make_request(tmp_path), launcher)
    assert [spec.config for spec in launcher.specs[1:]] == [FIRST, BASELINE]  # its own batch size is tried before giving up
    mended = FakeLauncher()
    collect(tune, make_request(tmp_path), mended)
    assert mended.specs[1].config == FIRST


def test_a_timeout_is_no_evidence_about_memory_and_the_search_goes_on(tmp_path):
    hangs = {FIRST: Outcome.TIMEOUT, BASELINE: Outcome.TIMEOUT}
    events, record = collect(tune, make_request(tmp_path, max_trials=8), FakeLauncher(hangs))
    trials = searched(events)
    assert trials[0].measurement.outcome is Outcome.TIMEOUT
    assert any(t.config.batch_size >= 32 for t in trials[1:])
    assert FIRST not in [t.config for t in trials[1:]]
    assert record.speedup.baseline_outcome is Outcome.TIMEOUT


def test_a_workload_that_always_hangs_is_given_up(tmp_path):
    class Hangs(FakeLauncher):
        def measure(self, spec):
            return Measurement(Outcome.TIMEOUT, Evidence("ended at its deadline"), 60.0)

    launcher = Hangs()
    with pytest.raises(NoTrialFinishedError, match="3 timeout"):
        collect(tune, make_request(tmp_path), launcher)
    assert sum(spec.role == "measure" for spec in launcher.specs) == 3


@pytest.mark.parametrize(
    ("jit_compile", "match"), [(True, "XLA compiled .* for 3 min 00 s and longer"), (False, "3 timeout")]
)
def test_trials_that_xla_compiles_for_too_long_are_said_to_be(tmp_path, jit_compile, match):
    class Compiling(FakeLauncher):
        def measure(self, spec):
            evidence = Evidence("ended at its deadline", phase=Phase.FIRST_STEP)
            return Measurement(Outcome.TIMEOUT, evidence, 185.0, phase_seconds={Phase.FIRST_STEP: 180.0})

    fake = Compiling({"describe": replace(DESCRIPTION, jit_compile=jit_compile)})
    with pytest.raises(NoTrialFinishedError, match=match):
        collect(tune, make_request(tmp_path), fake)


@pytest.mark.parametrize(
    ("limits", "memory", "needed", "at_least"),
    [({"device_bytes": 5 * MIB}, "device", 11, False), ({"host_bytes": 90 * MIB}, "host", 91, True)],
)
def test_when_nothing_fits_it_says_what_the_smallest_batch_needs(tmp_path, limits, memory, needed, at_least):
    launcher = FakeLauncher()
    with pytest.raises(NothingFitsError) as caught:
        collect(tune, make_request(tmp_path, max_trials=30, **limits), launcher)
    error = caught.value
    assert (error.memory, error.batch_size, error.at_least) == (memory, 1, at_least)
    assert error.needed_bytes // MIB == needed
    assert f"limit is {next(iter(limits.values())) / MIB:.1f} MiB" in str(error).replace("5.00", "5.0")
    assert {spec.limits.host_bytes for spec in launcher.specs} == {limits.get("host_bytes", 8192 * MIB)}  # always kept


def test_a_batch_too_large_to_be_described_is_described_with_one(tmp_path):
    class Large(FakeLauncher):
        def run(self, spec):
            if spec.role == "describe" and spec.config.batch_size > 1:
                self.specs.append(spec)
                return Measurement(Outcome.HOST_OOM, Evidence("too large"))
            return (yield from super().run(spec))

    launcher = Large()
    collect(tune, make_request(tmp_path, baseline={"batch_size": 4096}), launcher)
    assert [spec.config.batch_size for spec in launcher.specs if spec.role == "describe"] == [4096, 1]


def test_a_space_that_does_not_suit_the_data_is_said_before_anything_is_trained(tmp_path):
    launcher = FakeLauncher({"describe": replace(DESCRIPTION, knobs={"batch_size": "batch_size"})})
    with pytest.raises(UsageError, match="the data does not take it"):
        collect(tune, make_request(tmp_path, space={"workers": [1]}), launcher)
    assert [spec.role for spec in launcher.specs] == ["describe"]


def test_limits_reach_every_trial(tmp_path):
    launcher = FakeLauncher()
    collect(tune, make_request(tmp_path, device_bytes=300 * MIB), launcher)
    assert {spec.limits for spec in launcher.specs} == {Limits(300 * MIB, 8192 * MIB)}
    assert FitConfig(32, 1, 10, False) in {spec.config for spec in launcher.specs}


def test_what_cannot_even_be_described_says_what_it_needs(tmp_path):
    class Large(FakeLauncher):
        def run(self, spec):
            if spec.role == "describe":
                self.specs.append(spec)
                return Measurement(Outcome.HOST_OOM, Evidence("too large"), host_peak_bytes=51 * MIB)
            return (yield from super().run(spec))

    with pytest.raises(
        NothingFitsError, match=r"a batch of 1 needs more than 51\.0 MiB of host memory, the limit is 50\.0"
    ):
        collect(tune, make_request(tmp_path, host_bytes=50 * MIB), Large())


def test_a_baseline_outside_the_space_is_compared_with_but_never_the_answer(tmp_path):
    space = {"batch_size": [8, 16], "workers": [1], "max_queue_size": [10], "use_multiprocessing": [False]}
    _, record = collect(tune, make_request(tmp_path, space=space), FakeLauncher())
    assert record.config.batch_size == 16
    assert record.speedup.baseline.batch_size == 32
    assert record.speedup.ratio < 1


def test_a_trial_that_was_cut_short_by_the_seconds_left_ends_neither_the_search_nor_its_config(tmp_path):
    class Slow(FakeLauncher):
        def measure(self, spec):
            if spec.config.batch_size > 32 and spec.role == "measure":
                return Measurement(Outcome.TIMEOUT, Evidence("ended at its deadline"), spec.deadline_seconds)
            return super().measure(spec)

    slow = Slow()
    events, record = collect(tune, make_request(tmp_path, max_seconds=60.0), slow)
    assert all(trial.measurement.outcome is Outcome.OK for trial in record.trials)
    assert len(record.trials) >= 2
    cut_short = [spec.config for spec in slow.specs if spec.role == "measure" and spec.config.batch_size > 32]
    said = [event.text for event in events if isinstance(event, Notice)]
    assert len(cut_short) == sum("all that max_seconds leaves for a trial" in text for text in said)
    assert cut_short
    for number, config in enumerate(cut_short):
        assert not any(hardly_faster(ConfigArrays.of([config]), other)[0] for other in cut_short[:number])
    launcher = FakeLauncher()
    collect(tune, make_request(tmp_path, max_seconds=600.0), launcher)
    assert any(spec.role == "measure" and spec.config.batch_size > 32 for spec in launcher.specs)


@pytest.mark.parametrize(
    ("backend", "jit", "most"), [("torch", True, 480.0), ("torch", False, 180.0), ("jax", True, 180.0)]
)
def test_a_step_that_torch_compiles_has_more_time_but_none_beyond_max_seconds(tmp_path, backend, jit, most):
    compiled = replace(DESCRIPTION, jit_compile=jit, versions={"backend": backend})
    launcher = FakeLauncher({"describe": compiled})
    collect(tune, make_request(tmp_path), launcher)
    described, *later = launcher.specs
    assert described.deadline_seconds == 180.0
    assert {spec.deadline_seconds for spec in later} == {most}
    short = FakeLauncher({"describe": compiled})
    collect(tune, make_request(tmp_path / "short", max_seconds=100.0), short)
    assert max(spec.deadline_seconds for spec in short.specs) <= 100.0


def test_what_fits_is_looked_for_beyond_max_trials(tmp_path):
    _, record = collect(tune, make_request(tmp_path, device_bytes=12 * MIB, max_trials=1), FakeLauncher())
    assert record.config.batch_size <= 3


def test_an_answer_that_no_longer_fits_is_not_given(tmp_path):
    _, first = collect(tune, make_request(tmp_path), FakeLauncher())
    tighter = make_request(tmp_path, limits=Limits(None, first.host_peak_bytes - 1))
    _, second = collect(tune, tighter, FakeLauncher())
    assert second.host_peak_bytes < first.host_peak_bytes


NEARLY_EQUAL = {"batch_size": [320, 384, 448, 512], "workers": [4, 8], "max_queue_size": [4, 10]}


def test_finalists_that_noise_leaves_open_run_once_more_before_the_choice_is_confirmed(tmp_path):
    class Noisy(FakeLauncher):
        def measure(self, spec):
            m = super().measure(spec)
            return m if m.samples_per_second is None else replace(m, spread=0.1)

    launcher = Noisy()
    events, record = collect(tune, make_request(tmp_path, space=NEARLY_EQUAL), launcher)
    again = [e.trial.config for e in events if isinstance(e, TrialEnded) and e.stage == "finalist"]
    assert 2 <= len(again) <= 3
    assert record.config in again
    assert set(again) <= {t.config for t in record.trials}
    assert len(record.trials) == len(searched(events))
    confirmed = [e.trial.measurement for e in events if isinstance(e, TrialEnded) and e.stage == "chosen"]
    assert record.samples_per_second in [m.samples_per_second for m in confirmed]


def test_a_finalist_that_fails_is_out(tmp_path):
    class Noisy(FakeLauncher):
        def run(self, spec):
            again = any(s.config == spec.config and s.role == "measure" for s in self.specs)
            measurement = yield from super().run(spec)
            if again and spec.role == "measure" and spec.config.batch_size > 256:
                return Measurement(Outcome.HOST_OOM, Evidence("full", last_host_bytes=8000 * MIB))
            return replace(measurement, spread=0.1) if isinstance(measurement, Measurement) else measurement

    events, record = collect(tune, make_request(tmp_path, space=NEARLY_EQUAL), Noisy())
    lost = [e.trial for e in events if isinstance(e, TrialEnded) and e.trial.measurement.outcome.is_oom]
    assert lost
    assert record.config not in [t.config for t in lost]


def test_a_trial_is_told_the_rate_to_beat_and_what_is_known_of_its_step(tmp_path):
    launcher = FakeLauncher()
    collect(tune, make_request(tmp_path), launcher)
    first, *later = [spec for spec in launcher.specs if spec.role == "measure"]
    assert (first.rate_to_beat, first.compute_samples_per_second) == (0.0, None)
    assert later[1].rate_to_beat > 0
    reused = [spec for spec in later if spec.compute_samples_per_second]
    assert all(s.compute_samples_per_second == 4000 * s.config.batch_size / (s.config.batch_size + 64) for s in reused)


def test_what_is_tried_is_said_with_its_reason(tmp_path):
    events, _ = collect(tune, make_request(tmp_path), FakeLauncher())
    reasons = [e.why for e in events if isinstance(e, Activity) and e.doing.startswith("trial")]
    assert reasons[0].startswith(Reason.PROBE.label)
    assert any("predicted +" in why for why in reasons)


@pytest.mark.parametrize("form", ["factory", "arrays"])
def test_validation_that_does_not_fit_is_given_smaller_batches(tmp_path, form):
    call_source = CallSource(validation="validation", validation_form=DataForm(form))
    knobs = {"batch_size": "batch_size"} if form == "factory" else {}
    launcher = Validating(knobs, validates=20)
    events, record = collect(tune, make_request(tmp_path, max_trials=8, call_source=call_source), launcher)
    assert record.config.batch_size > 20 >= record.validation_batch_size > 4
    assert any("validation did not fit" in event.text for event in events if isinstance(event, Notice))
    assert record.fit_kwargs.get("validation_batch_size") == (None if form == "factory" else record.validation_batch_size)
    assert f"batch_size={record.validation_batch_size}" in snippet.render(record)


class Validating(FakeLauncher):
    """Its validation takes other knobs."""

    def __init__(self, knobs, **kwargs):
        super().__init__(**kwargs)
        self._knobs = knobs

    def run(self, spec):
        result = yield from super().run(spec)
        return replace(result, validation_knobs=self._knobs) if isinstance(result, Description) else result


def confirming(launcher):
    return [spec.config for spec in launcher.specs if spec.role == "confirm"]


def test_confirming_runs_of_a_tune_that_was_ended_are_not_run_again(tmp_path):
    first, second = FakeLauncher(), FakeLauncher()

    def interrupt(event):
        if isinstance(event, TrialEnded) and event.stage == "baseline":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(make_request(tmp_path), first, interrupt)
    _, record = collect(tune, make_request(tmp_path), second)
    assert len(confirming(first)) + len(confirming(second)) == 4
    assert [run.stage for run in record.runs if run.stage != "finalist"] == [
        "chosen",
        "baseline",
        "baseline",
        "chosen",
    ]
    third = FakeLauncher()
    collect(tune, make_request(tmp_path, tolerance=0.03), third)
    assert len(confirming(third)) == 4  # another answer is asked for: its proof is its own


def test_why_a_config_was_tried_and_what_ran_after_the_search_are_kept(tmp_path):
    events, record = collect(tune, make_request(tmp_path), FakeLauncher())
    assert all(trial.why for trial in record.trials)
    assert Reason.PROBE.label in record.trials[0].why
    ended = [(event.stage, event.trial) for event in events if isinstance(event, TrialEnded)]
    assert [(run.stage, run) for run in record.runs] == [one for one in ended if one[0] != "search"]


def test_an_error_carries_what_was_seen(tmp_path):
    with pytest.raises(NothingFitsError) as caught:
        collect(tune, make_request(tmp_path, device_bytes=5 * MIB), FakeLauncher())
    seen = caught.value.tune
    assert (seen.memory, seen.needed_bytes, seen.limits.device_bytes) == ("device", 11 * MIB, 5 * MIB)
    assert seen.problem == str(caught.value)
    assert {trial.measurement.outcome for trial in seen.trials} == {Outcome.DEVICE_OOM}
    result_files.save(seen, tmp_path / "result.json")
    assert result_files.load(tmp_path / "result.json") == seen
    with pytest.raises(UsageError, match=r"result\.json: .*nothing fits: a batch of 1 needs 11\.0 MiB"):
        result_files.load_answer(tmp_path / "result.json")


def test_a_similar_question_begins_with_what_is_known(tmp_path):
    _, before = collect(tune, make_request(tmp_path, device_bytes=300 * MIB), FakeLauncher())
    cold, _ = collect(tune, make_request(tmp_path / "cold", device_bytes=200 * MIB), FakeLauncher())
    warm, record = collect(tune, make_request(tmp_path, device_bytes=200 * MIB), FakeLauncher())
    assert before.config.batch_size > record.config.batch_size
    assert len(searched(warm)) < len(searched(cold))
    assert searched(warm)[0].why.startswith(Reason.WARM_START.label)
    assert any("of similar tunes" in event.text for event in warm if isinstance(event, Notice))
    assert record.device_peak_bytes <= 200 * MIB
    assert len([run for run in record.runs if run.stage == "chosen"]) == 2


def test_another_model_or_machine_is_not_similar(tmp_path):
    collect(tune, make_request(tmp_path), FakeLauncher())
    for changes in ({"workload_fingerprint": "y"}, {"machine": replace(MACHINE, cores=2)}):
        events, _ = collect(tune, make_request(tmp_path, **changes), FakeLauncher())
        assert not [event.text for event in events if isinstance(event, Notice)]


class Disappointing(FakeLauncher):
    """What is chosen first runs at a third of its speed when it is confirmed, as after a reading that was noise."""

    def __init__(self, config):
        super().__init__()
        self.config = config

    def run(self, spec):
        measured = yield from super().run(spec)
        if spec.role != "describe" and spec.config == self.config and self.seen(spec) > 1:
            return replace(measured, samples_per_second=measured.samples_per_second / 3)
        return measured

    def seen(self, spec):
        return sum(s.config == spec.config for s in self.specs if s.role != "describe")


def test_a_choice_that_disappoints_gives_way_to_what_read_far_more(tmp_path):
    _, first = collect(tune, make_request(tmp_path / "a", max_trials=12), FakeLauncher())
    events, second = collect(tune, make_request(tmp_path / "b", max_trials=12), Disappointing(first.config))
    assert second.config != first.config
    assert second.samples_per_second > 0.8 * first.samples_per_second
    notices = [event.text for event in events if isinstance(event, Notice)]
    raced = [run for run in second.runs if run.stage == "finalist"]
    assert any("far below" in text for text in notices) or raced
    assert [run.config for run in second.runs if run.stage == "chosen"][-1] == second.config


class Slowing(FakeLauncher):
    """A machine on which everything that confirms runs at two thirds of its speed."""

    def run(self, spec):
        measured = yield from super().run(spec)
        if spec.role == "confirm":
            return replace(measured, samples_per_second=measured.samples_per_second / 1.5)
        return measured


def test_a_machine_that_slows_down_after_the_search_casts_no_doubt_on_the_choice(tmp_path):
    request = make_request(tmp_path, baseline={"batch_size": 8}, max_trials=12)
    events, record = collect(tune, request, Slowing())
    assert record.speedup.is_shown
    assert not any("far below" in event.text for event in events if isinstance(event, Notice))
    assert len({run.config for run in record.runs if run.stage == "chosen"}) == 1


def test_a_confirmed_rate_that_noise_explains_is_left_alone():
    def trial(batch, rate, spread):
        ok = FakeLauncher().measure(TrialSpec(Role.MEASURE, FitConfig(batch, 1, 10, False), LOOSE, 9.0))
        return Trial(FitConfig(batch, 1, 10, False), replace(ok, samples_per_second=rate, spread=spread))

    trials = [trial(32, 1000.0, 0.02), trial(64, 1130.0, 0.02), trial(128, 1400.0, 0.5)]
    chosen = trials[0].config
    assert selection.overlooked(trials, LOOSE, {chosen}, 1000.0, 0.02) is None
    assert selection.overlooked(trials, LOOSE, {chosen}, 700.0, 0.02) in trials[1:]
    assert selection.overlooked(trials, LOOSE, {trial.config for trial in trials}, 700.0, 0.02) is None


class Descending:
    """Proposes the untried config with the largest batch; knows nothing of memory or rates."""

    def __init__(self, request, prepared):
        self.configs = sorted(prepared.space.configs(), key=lambda config: config.batch_size)[-5:]

    def propose(self, trials):
        tried = {trial.config for trial in trials}
        untried = [config for config in self.configs if config not in tried]
        if not untried:
            return Decision(stop_reason="nothing is left")
        return Decision(Proposal(untried[-1], Reason.PROBE))

    def rates(self, trials):
        ran = [t for t in trials if t.measurement.samples_per_second]
        return {t.config: (math.log(t.measurement.samples_per_second), 0.01) for t in ran}


def test_another_proposer_takes_the_place_of_autofits_own(tmp_path):
    request = make_request(tmp_path, max_trials=10)
    events, record = collect(tuner.tune, request, FakeLauncher(), make_proposer=Descending)
    tried = [trial.config.batch_size for trial in searched(events)]
    assert len(tried) == 5
    assert record.stop_reason == "nothing is left"
    assert record.config in [trial.config for trial in record.searched]


class OfOneSize(FakeLauncher):
    """User code that fails with every batch size but one."""

    def __init__(self, size, **knobs):
        super().__init__()
        self.size, self.knobs = size, knobs

    def run(self, spec):
        result = yield from super().run(spec)
        return replace(result, knobs=self.knobs) if self.knobs and isinstance(result, Description) else result

    def measure(self, spec):
        if spec.config.batch_size == self.size:
            return super().measure(replace(spec, config=FitConfig.of({**BASELINE.values(), **spec.config.values()})))
        return Measurement(Outcome.ERROR, Evidence("ValueError: incompatible shapes"), 1.0, traceback="Traceback: boom")


def test_code_that_runs_with_its_own_batch_size_only_is_tuned_with_that_size(tmp_path):
    events, record = collect(tune, make_request(tmp_path), OfOneSize(32))
    assert {trial.config.batch_size for trial in (*record.trials, *record.runs)} == {32}
    assert record.config.workers > 1
    assert record.description.fixed_batch_size == 32
    assert "runs with 32 (ValueError: incompatible shapes)" in record.untuned["batch_size"]
    assert result_files.encode(record)["untuned"] == record.untuned
    assert sum(record.untuned["batch_size"] in event.text for event in events if isinstance(event, Notice)) == 1


def test_code_that_fails_with_its_own_batch_size_is_the_users_error(tmp_path):
    with pytest.raises(UserCodeError):
        collect(tune, make_request(tmp_path), OfOneSize(7))


def test_with_no_other_knob_there_is_nothing_to_tune_and_the_reason_is_given(tmp_path):
    launcher = OfOneSize(32, batch_size="batch_size")
    with pytest.raises(UsageError, match=r"nothing to tune: your code fails with batches of .* and runs with 32"):
        collect(tune, make_request(tmp_path), launcher)


def test_a_short_training_is_not_worth_many_trials(tmp_path):
    _, usual = collect(tune, make_request(tmp_path, max_trials=12, tolerance=0.0), FakeLauncher())
    request = make_request(tmp_path, max_trials=12, tolerance=0.0, expected_training_seconds=10.0)
    _, record = collect(tune, request, FakeLauncher())
    assert "training time" in record.stop_reason
    assert len(record.trials) == len(usual.trials)  # those of the study are reused, and no other runs
    _, fresh = collect(tune, replace(request, fresh=True), FakeLauncher())
    assert len(fresh.trials) < len(usual.trials)


QUIET, BUSY = Conditions(2, 0.0, 0.5), Conditions(2, 1.1, 0.0)


class BesideOtherWork(FakeLauncher):
    """Other work runs beside the trials of these numbers, and slows them down."""

    def __init__(self, disturbed):
        super().__init__()
        self.disturbed = disturbed

    def measure(self, spec):
        number = sum(spec.role != "describe" for spec in self.specs) - 1
        result = super().measure(spec)
        if number not in self.disturbed:
            return replace(result, conditions=QUIET)
        return replace(result, samples_per_second=0.6 * result.samples_per_second, conditions=BUSY)


def test_what_other_work_disturbed_is_measured_again(tmp_path):
    events, record = collect(tune, make_request(tmp_path), BesideOtherWork({1, 7}))
    _, undisturbed = collect(tune, make_request(tmp_path / "b"), FakeLauncher())
    said = [event.text for event in events if isinstance(event, Notice)]
    assert [text.endswith("it is measured again") for text in said] == [True, True]
    assert record.config == undisturbed.config
    assert all(trial.measurement.conditions == QUIET for trial in (*record.searched, *record.runs))


def test_other_work_that_does_not_pass_is_said_once(tmp_path):
    launcher = BesideOtherWork(range(100))
    events, record = collect(tune, make_request(tmp_path), launcher)
    said = [event.text for event in events if isinstance(event, Notice)]
    assert len(said) == 2
    assert "other processes used 1.1 of 2 cores again" in said[1]
    assert len(launcher.specs) == 1 + len(record.searched) + len(record.runs) + 1
    assert "timed beside other work" in advice(record)["other work"]


@pytest.mark.parametrize("role", ["describe", "measure", "confirm"])
@pytest.mark.parametrize("times", [1, 99])
def test_what_is_lost_with_its_server_runs_again_once(tmp_path, role, times):
    class Killed(FakeLauncher):
        """The server is killed from outside in the first trials of a role."""

        lost = 0

        def run(self, spec):
            result = yield from super().run(spec)
            if spec.role == role and self.lost < times:
                self.lost += 1
                return Measurement(Outcome.CRASHED, Evidence("lost together with the server", server_lost=True), 1.0)
            return result

    request, launcher = make_request(tmp_path), Killed()
    if times == 1:
        events, record = collect(tune, request, launcher)
        _, undisturbed = collect(tune, make_request(tmp_path / "b"), FakeLauncher())
        assert (record.config, record.runs) == (undisturbed.config, undisturbed.runs)
        (notice,) = [event.text for event in events if isinstance(event, Notice)]
        assert "lost together with the server. It runs again" in notice
    else:
        what = "failed when it ran again" if role == "confirm" else "no trial finished|could not be built"
        with pytest.raises(NoTrialFinishedError, match=what):
            collect(tune, request, launcher)
        assert launcher.lost == 2 * len({spec.config for spec in launcher.specs if spec.role == role})


def test_a_library_that_finds_no_memory_beside_the_limit_gets_some_before_the_batch_is_condemned(tmp_path):
    class Crowded(FakeLauncher):
        def measure(self, spec):
            if spec.limits.device_bytes == 4096 * MIB and spec.config.batch_size > 32:
                return Measurement(Outcome.DEVICE_OOM, Evidence("no cublas handle", outside_pool=True), 5.0)
            return super().measure(spec)

    events, record = collect(tune, make_request(tmp_path, device_bytes=4096 * MIB), Crowded())
    assert record.config.batch_size > 32
    assert not any(trial.measurement.outcome.is_oom for trial in record.trials)
    said = [event.text for event in events if isinstance(event, Notice)]
    assert any("no memory beside a limit of 4.00 GiB; with 3.50 GiB it ran" in text for text in said)


@pytest.mark.parametrize(("count", "baseline"), [(1, 32), (2, 32), (3, 33), (5, 35)])
def test_several_devices_share_the_baseline_and_whatever_is_tried(tmp_path, count, baseline):
    request = make_request(tmp_path, placement=Placement(count=count))
    _, record = collect(tune, request, FakeLauncher())
    tried = {trial.config.batch_size for trial in (*record.trials, *record.runs)}
    assert all(batch % count == 0 for batch in tried)
    assert record.speedup.baseline.batch_size == baseline
    assert record.placement == Placement(count=count)
    assert record.device == ("CPU" if count == 1 else f"CPU as {count} devices")
