"""The loop, above the process wall: what is tried, stored, chosen, confirmed, demoted, resumed and said."""

import re
from dataclasses import replace

import pytest

from autofit.errors import NothingFitsError, NoTrialFinishedError, UsageError, UserCodeError
from autofit.records.events import Activity, Described, Notice, TrialEnded
from autofit.records.result import CallSource
from autofit.records.states import Outcome, Role
from autofit.records.trial import Evidence, FitConfig, Limits, Measurement, TrialSpec
from autofit.search.failures import dominated_by, hardly_faster
from autofit.search.frontier import LABELS, Reason
from autofit.search.space import build_space
from autofit.storage import result_files
from autofit.tuning import budget
from tests.fakes import BASELINE, DESCRIPTION, KNOBS, MIB, FakeLauncher, arrays, collect, make_request, searched, tune

FIRST = FitConfig(8, 1, 10, False)
"""What is tried first where nothing is known of the memory."""


def test_a_tune_finds_what_is_faster_than_the_baseline_and_confirms_it(tmp_path):
    launcher = FakeLauncher()
    events, record = collect(tune, make_request(tmp_path, max_trials=20), launcher)
    trials = searched(events)
    assert 3 <= len(trials) <= 22
    assert trials[0].config == FIRST
    assert isinstance(next(e for e in events if not isinstance(e, Activity)), Described)
    space = build_space(None, KNOBS, cores=4, sample_count=2000)

    def rate(config):
        return launcher.measure(TrialSpec(Role.MEASURE, config, Limits(None, 8192 * MIB), 60.0)).samples_per_second or 0

    assert record.samples_per_second >= 0.95 * max(rate(config) for config in space.configs())
    assert record.speedup.ratio == pytest.approx(record.samples_per_second / rate(BASELINE))
    assert 1.0 < record.speedup.low <= record.speedup.ratio <= record.speedup.high
    assert record.fastest.challenger is None
    assert record.trials == tuple(trials)
    assert record.config in [spec.config for spec in launcher.specs if spec.role == "confirm"]


def test_the_fit_kwargs_of_the_result_contain_those_of_the_user(tmp_path):
    source = CallSource(fit_kwargs={"epochs": 3, "validation_split": 0.2})
    _, record = collect(tune, make_request(tmp_path, call_source=source), FakeLauncher())
    assert record.fit_kwargs == source.fit_kwargs


@pytest.mark.parametrize(
    "limits", [{"device_bytes": 100 * MIB}, {"host_bytes": 600 * MIB}, {"device_bytes": 80 * MIB, "host_bytes": 600 * MIB}]
)
def test_nothing_above_a_known_oom_is_tried(tmp_path, limits):
    events, record = collect(tune, make_request(tmp_path, max_trials=16, **limits), FakeLauncher(cliff=32))
    trials = searched(events)
    assert any(trial.measurement.outcome.is_oom for trial in trials)
    for later, trial in enumerate(trials):
        for oom in trials[:later]:
            assert not dominated_by(arrays(trial.config), arrays(oom.config), oom.measurement.outcome)[0]
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
    assert len({trial.config for trial in record.trials}) == len(record.trials) <= 10


def test_the_same_question_is_answered_from_the_store(tmp_path):
    _, first = collect(tune, make_request(tmp_path), FakeLauncher())
    launcher = FakeLauncher()
    events, second = collect(tune, make_request(tmp_path), launcher)
    assert second == first
    assert launcher.specs == []
    (notice,) = [event.text for event in events]
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d .*--fresh", notice)


def test_an_answer_that_does_not_fit_what_is_free_now_is_asked_anew(tmp_path):
    asked = {"device_memory": "90%", "host_memory": "80%"}
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


def test_fresh_forgets(tmp_path):
    once, again = FakeLauncher(), FakeLauncher()
    collect(tune, make_request(tmp_path), once)
    collect(tune, make_request(tmp_path, fresh=True), again)
    assert [(spec.role, spec.config) for spec in again.specs] == [(spec.role, spec.config) for spec in once.specs]


def test_an_error_of_the_users_with_the_baseline_stops_everything_and_is_tried_again_next_time(tmp_path):
    request = make_request(tmp_path, baseline={"batch_size": 8})
    launcher = FakeLauncher({FIRST: Outcome.ERROR})
    with pytest.raises(UserCodeError, match="boom"):
        collect(tune, request, launcher)
    assert [spec.config for spec in launcher.specs[1:]] == [FIRST]
    mended = FakeLauncher()
    collect(tune, request, mended)
    assert mended.specs[1].config == FIRST


class Triplets(FakeLauncher):
    """Code that takes only multiples of three samples."""

    def measure(self, spec):
        if spec.config.batch_size % 3:
            return Measurement(Outcome.ERROR, Evidence("ValueError: not a multiple of 3"), 1.0, traceback="Traceback: boom")
        return super().measure(spec)


def test_code_that_takes_multiples_only_is_tuned_with_these(tmp_path):
    request = make_request(tmp_path, baseline={"batch_size": 30}, max_trials=8)
    events, record = collect(tune, request, Triplets())
    outcomes = [(trial.config.batch_size % 3 > 0, trial.measurement.outcome is Outcome.OK) for trial in searched(events)]
    assert outcomes.count((True, False)) <= 2
    assert outcomes.count((False, True)) >= 3
    assert record.config.batch_size % 3 == 0


def test_a_timeout_is_no_evidence_about_memory_and_the_search_goes_on(tmp_path):
    hangs = {FIRST: Outcome.TIMEOUT, BASELINE: Outcome.TIMEOUT}
    events, record = collect(tune, make_request(tmp_path, max_trials=8), FakeLauncher(hangs))
    trials = searched(events)
    assert trials[0].measurement.outcome is Outcome.TIMEOUT
    assert any(t.config.batch_size >= 32 for t in trials[1:])
    assert FIRST not in [t.config for t in trials[1:]]
    assert record.speedup.baseline_outcome is Outcome.TIMEOUT


def test_a_workload_that_always_times_out_is_given_up(tmp_path):
    class Slow(FakeLauncher):
        def measure(self, spec):
            return Measurement(Outcome.TIMEOUT, Evidence("ended at its deadline"), 185.0)

    launcher = Slow()
    with pytest.raises(NoTrialFinishedError, match=r"3 timeout.*Raise max_trial_seconds"):
        collect(tune, make_request(tmp_path), launcher)
    assert sum(spec.role == "measure" for spec in launcher.specs) == 3


@pytest.mark.parametrize(
    ("limits", "memory", "needed"), [({"device_bytes": 5 * MIB}, "device", 5), ({"host_bytes": 90 * MIB}, "host", 91)]
)
def test_when_nothing_fits_it_says_what_the_smallest_batch_needs(tmp_path, limits, memory, needed):
    launcher = FakeLauncher()
    with pytest.raises(NothingFitsError, match=r"more than .* MiB of .* memory, but the limit is") as caught:
        collect(tune, make_request(tmp_path, max_trials=30, **limits), launcher)
    assert (caught.value.memory, caught.value.batch_size) == (memory, 1)
    assert caught.value.needed_bytes == needed * MIB
    again = FakeLauncher()
    with pytest.raises(NothingFitsError):
        collect(tune, make_request(tmp_path, max_trials=30, **limits), again)
    assert [spec.role for spec in again.specs] == ["describe"]


def test_a_trial_that_was_cut_short_by_the_seconds_left_ends_neither_the_search_nor_its_config(tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "monotonic", lambda: 0.0)  # no seconds that a busy machine adds

    class Slow(FakeLauncher):
        def measure(self, spec):
            if spec.config.batch_size > 48 and spec.role == "measure":
                return Measurement(Outcome.TIMEOUT, Evidence("ended at its deadline"), spec.deadline_seconds)
            return super().measure(spec)

    _, record = collect(tune, make_request(tmp_path, max_seconds=60.0), Slow())
    cut_short = [trial.config for trial in record.trials if trial.measurement.outcome is Outcome.TIMEOUT]
    assert cut_short
    assert len(record.trials) - len(cut_short) >= 2
    for number, config in enumerate(cut_short):
        assert not any(hardly_faster(arrays(config), arrays(other))[0] for other in cut_short[:number])
    launcher = FakeLauncher()
    collect(tune, make_request(tmp_path, max_seconds=600.0, max_trials=12), launcher)
    assert any(spec.role == "measure" and spec.config.batch_size > 48 for spec in launcher.specs)


def test_why_a_config_was_tried_and_what_ran_after_the_search_are_kept(tmp_path):
    events, record = collect(tune, make_request(tmp_path), FakeLauncher())
    reasons = [event.why for event in events if isinstance(event, Activity) and event.doing.startswith("trial")]
    assert [trial.why for trial in record.trials] == list(dict.fromkeys(reasons))
    assert record.trials[0].why.startswith(LABELS[Reason.PROBE])
    assert any("predicted +" in why for why in reasons)
    ended = [(event.trial.stage, event.trial) for event in events if isinstance(event, TrialEnded)]
    assert [(run.stage, run) for run in record.runs] == [one for one in ended if one[0] != "search"]


def test_an_error_carries_what_was_seen(tmp_path):
    with pytest.raises(NothingFitsError) as caught:
        collect(tune, make_request(tmp_path, device_bytes=5 * MIB), FakeLauncher())
    seen = caught.value.tune
    assert (seen.memory, seen.needed_bytes, seen.limits.device_bytes) == ("device", 5 * MIB, 5 * MIB)
    assert seen.problem == str(caught.value)
    assert {trial.measurement.outcome for trial in seen.trials} == {Outcome.DEVICE_OOM}
    result_files.save(seen, tmp_path / "result.json")
    assert result_files.load(tmp_path / "result.json") == seen
    with pytest.raises(UsageError, match=r"^result\.json: .*5\.00 MiB"):
        result_files.answered(result_files.load(tmp_path / "result.json"), "result.json")
