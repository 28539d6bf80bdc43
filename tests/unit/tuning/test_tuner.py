"""The loop, above the process wall.

What is tried, stored, chosen, confirmed, demoted, resumed and said.
"""

import itertools
from dataclasses import replace

import pytest

from autofit.errors import (
    NothingFitsError,
    NoTrialFinishedError,
    UsageError,
    UserCodeError,
)
from autofit.records.events import Described
from autofit.records.knobs import FitConfig
from autofit.records.result import CallSource
from autofit.records.states import Outcome, Role
from autofit.records.trial import Evidence, Limits, Measurement, Trial, TrialSpec
from autofit.search.failures import dominated_by, hardly_faster
from autofit.search.frontier import Reason
from autofit.search.space import build_space
from autofit.storage import result_files
from autofit.tuning import budget
from tests.fakes import (
    BASELINE,
    DESCRIPTION,
    KNOBS,
    MIB,
    FakeLauncher,
    arrays,
    collect,
    make_request,
    searched,
    tune,
    tuned,
)

FEW = {
    "batch_size": [8, 32, 128],
    "workers": [4],
    "max_queue_size": [10],
    "use_multiprocessing": [False],
}
FIRST = FitConfig(8, 1, 10, False)
"""What is tried first where nothing is known of the memory."""


def kept(events):
    return next(event for event in events if isinstance(event, Described)).log.trials


def test_a_tune_finds_what_is_faster_than_the_baseline_and_confirms_it(tmp_path):
    launcher = FakeLauncher()
    source = CallSource(fit_kwargs={"epochs": 3, "validation_split": 0.2})
    events, record = collect(
        tune, make_request(tmp_path, max_trials=20, call_source=source), launcher
    )

    def rate(config):
        return (
            launcher.measure(
                TrialSpec(Role.MEASURE, config, Limits(None, 8192 * MIB), 60.0)
            ).samples_per_second
            or 0
        )

    best = max(
        map(rate, build_space(None, KNOBS, cores=4, sample_count=2000).configs())
    )
    assert record.samples_per_second >= 0.95 * best
    assert record.speedup.ratio == pytest.approx(
        record.samples_per_second / rate(BASELINE)
    )
    assert 1.0 < record.speedup.low <= record.speedup.ratio <= record.speedup.high
    assert record.config in launcher.configs("confirm")
    assert record.fit_kwargs == source.fit_kwargs
    trials = searched(events)
    assert record.trials == tuple(trials)
    assert 3 <= len(trials) <= 22
    assert trials[0].config == FIRST
    assert trials[0].why.startswith(Reason.PROBE)
    assert list(record.runs) == [
        e for e in events if isinstance(e, Trial) and e.stage != "search"
    ]


@pytest.mark.parametrize(
    ("limits", "cliff"),
    [
        ({"device_bytes": 80 * MIB, "host_bytes": 600 * MIB}, 32),
        ({"device_bytes": 330 * MIB}, None),  # the memory is as the models expect it
        ({"host_bytes": 900 * MIB}, None),
    ],
)
def test_the_frontier_is_reached_without_an_oom_and_nothing_above_a_known_one_is_tried(
    tmp_path, limits, cliff
):
    request = make_request(tmp_path, max_trials=12, **limits)
    events, record = collect(tune, request, FakeLauncher(cliff=cliff))
    trials = searched(events)
    for trial, later in itertools.combinations(trials, 2):
        assert not dominated_by(
            arrays(later.config), arrays(trial.config), trial.measurement.outcome
        )[0]
    assert any(trial.measurement.outcome.is_oom for trial in trials) is (
        cliff is not None
    )
    assert request.limits.allow(record.device_peak_bytes or 0, record.host_peak_bytes)
    if cliff is None:
        (memory, limit), = limits.items()  # fmt: skip  # the only one
        peaks = [
            getattr(trial.measurement, memory.replace("bytes", "peak_bytes"))
            for trial in trials
        ]
        assert max(peaks) > 0.7 * limit


def test_the_same_question_is_answered_from_the_store_with_the_files_as_they_are_now(
    tmp_path,
):
    first = tuned(tmp_path, space=FEW)
    launcher = FakeLauncher()
    events, second = collect(tune, make_request(tmp_path, space=FEW), launcher)
    assert (second, launcher.specs, len(events)) == (first, [], 1)
    assert "--fresh" in events[0]
    moved = CallSource(imports=("import sys", "sys.path.insert(0, '/new')"))
    assert tuned(tmp_path, space=FEW, call_source=moved) == replace(
        first, call_source=moved
    )
    tuned(tmp_path, launcher, space=FEW, fresh=True)
    assert launcher.configs("measure") == [trial.config for trial in first.trials]


def test_a_model_that_has_changed_behind_the_same_sources_forgets_its_trials(tmp_path):
    tuned(tmp_path, space=FEW)
    launcher = FakeLauncher(
        {"describe": replace(DESCRIPTION, fingerprint="another model")}
    )
    events, _ = collect(tune, make_request(tmp_path, space=FEW, max_trials=4), launcher)
    assert not kept(events)
    assert any("are deleted" in event for event in events if isinstance(event, str))


def test_a_result_with_few_updates_answers_only_who_allowed_them(tmp_path):
    wide = tuned(tmp_path, min_updates=1)
    events, record = collect(
        tune, make_request(tmp_path, min_updates=10), FakeLauncher()
    )
    assert record.config.batch_size <= 200 < wide.config.batch_size
    assert kept(events) == tuple(
        trial for trial in wide.trials if trial.config.batch_size <= 200
    )
    assert tuned(tmp_path, min_updates=1).started_at == wide.started_at


def test_an_error_of_the_users_with_the_baseline_stops_everything_and_is_tried_again_next_time(
    tmp_path,
):
    broken, mended = FakeLauncher({FIRST: Outcome.ERROR}), FakeLauncher()
    with pytest.raises(UserCodeError, match="boom"):
        tuned(tmp_path, broken, baseline={"batch_size": 8})
    assert broken.configs("measure") == [FIRST]
    tuned(tmp_path, mended, baseline={"batch_size": 8})
    assert mended.configs("measure")[0] == FIRST


@pytest.mark.parametrize("outcome", [Outcome.TIMEOUT, Outcome.CRASHED])
def test_a_workload_that_always_fails_is_given_up_which_does_not_count_in_a_later_tune(
    tmp_path, outcome
):
    def changed(spec, measured):
        return Measurement(outcome, Evidence("ended"), spec.deadline_seconds)

    launcher = FakeLauncher(changed=changed)
    with pytest.raises(NoTrialFinishedError, match=f"3 {outcome}") as raised:
        tuned(tmp_path, launcher)
    assert ("Raise max_trial_seconds" in str(raised.value)) is (
        outcome is Outcome.TIMEOUT
    )
    assert len(launcher.configs("measure")) == 3
    assert tuned(tmp_path, max_trials=3).trials


@pytest.mark.parametrize(
    ("limits", "memory", "needed"),
    [({"device_bytes": 5 * MIB}, "device", 5), ({"host_bytes": 90 * MIB}, "host", 91)],
)
def test_when_nothing_fits_the_error_has_what_the_smallest_batch_needs_and_what_was_seen(
    tmp_path, limits, memory, needed
):
    with pytest.raises(
        NothingFitsError, match=r"more than .* MiB of .* memory, but the limit is"
    ) as caught:
        tuned(tmp_path, max_trials=30, **limits)
    error = caught.value
    seen = caught.value.tune
    assert (error.memory, error.batch_size, error.needed_bytes) == (
        memory,
        1,
        needed * MIB,
    )
    assert (seen.memory, seen.needed_bytes, seen.problem) == (
        memory,
        needed * MIB,
        str(error),
    )
    assert {trial.measurement.outcome for trial in seen.trials} == {
        Outcome(f"{memory}_oom")
    }
    result_files.save(seen, tmp_path / "result.json")
    with pytest.raises(UsageError, match=r"^result\.json: .* MiB"):
        result_files.tune_of(result_files.load(tmp_path / "result.json"), "result.json")
    again = FakeLauncher()
    with pytest.raises(NothingFitsError):
        tuned(tmp_path, again, max_trials=30, **limits)
    assert [spec.role for spec in again.specs] == ["describe"]


@pytest.mark.parametrize("role", ["describe", "measure"])
def test_when_memory_ends_below_the_limit_the_error_keeps_the_reason_and_names_no_higher_need(
    tmp_path, role
):
    full = Measurement(
        Outcome.HOST_OOM,
        Evidence("died with /dev/shm full"),
        1.0,
        host_peak_bytes=70 * MIB,
    )
    special = {"describe": full} if role == "describe" else {}
    launcher = FakeLauncher(special, changed=lambda spec, measured: full)
    with pytest.raises(
        NothingFitsError, match=r"\(died with /dev/shm full\)"
    ) as raised:
        tuned(tmp_path, launcher, max_trials=30)
    assert raised.value.needed_bytes == 70 * MIB
    assert "needs more" not in str(raised.value)
    assert "Raise" not in str(raised.value)


def test_a_trial_that_was_cut_short_by_the_seconds_left_ends_neither_the_search_nor_its_config(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(
        budget, "monotonic", lambda: 0.0
    )  # no seconds that a busy machine adds

    def changed(spec, measured):
        is_cut = spec.config.batch_size > 48 and spec.role == "measure"
        return (
            Measurement(Outcome.TIMEOUT, Evidence("ended"), spec.deadline_seconds)
            if is_cut
            else measured
        )

    record = tuned(tmp_path, FakeLauncher(changed=changed), max_seconds=60.0)
    launcher = FakeLauncher()
    cut_short = [
        trial.config
        for trial in record.trials
        if trial.measurement.outcome is Outcome.TIMEOUT
    ]
    assert 0 < len(cut_short) < len(record.searched)
    for earlier, config in itertools.combinations(cut_short, 2):
        assert not hardly_faster(arrays(config), arrays(earlier))[0]
    tuned(tmp_path, launcher, max_seconds=600.0, max_trials=8)
    assert max(config.batch_size for config in launcher.configs("measure")) > 48
