"""The start of a search, and what `batch_size` asks for.

The start is a space, a baseline, a description and a warm start.
"""

from dataclasses import replace

import pytest

from autofit.errors import NothingFitsError, UsageError, UserCodeError
from autofit.records.description import Footprint
from autofit.records.events import Described
from autofit.records.knobs import FitConfig
from autofit.records.machine import Placement
from autofit.records.states import Outcome
from autofit.records.trial import Evidence, Measurement
from autofit.search.frontier import Reason
from autofit.storage import result_files
from autofit.tuning.problem import build_problem, notices
from autofit.tuning.settings import TuneSettings
from tests.fakes import (
    BASELINE,
    DESCRIPTION,
    KNOBS,
    MIB,
    FakeLauncher,
    collect,
    make_request,
    searched,
    tune,
    tuned,
)

TF_DATA = replace(
    DESCRIPTION,
    input_kind="tf.data",
    knobs={
        "batch_size": "batch_size",
        "workers": "num_parallel_calls",
        "max_queue_size": "prefetch",
    },
    defaults={"batch_size": 64, "workers": -1, "max_queue_size": -1},
)
TAKES_STEPS = replace(DESCRIPTION, defaults={"steps_per_execution": 1})
NO_BATCH = replace(
    DESCRIPTION, knobs={knob: knob for knob in KNOBS if knob != "batch_size"}
)
ONE_EACH = {"workers": [1], "max_queue_size": [10], "use_multiprocessing": [False]}
STEPS = {"space": {"batch_size": [32], "steps_per_execution": [8]}}


@pytest.mark.parametrize(
    ("described", "settings", "key"),
    [
        (
            DESCRIPTION,
            {"space": {"workers": [-1, 2]}},
            "space.workers",
        ),  # AUTOTUNE is for tf.data alone
        (DESCRIPTION, {"baseline": {"workers": -1}}, "baseline"),
        (
            replace(DESCRIPTION, knobs={"batch_size": "batch_size"}),
            {"space": {"workers": [1]}},
            "space",
        ),
        (DESCRIPTION, STEPS, "space"),  # for this model, they cannot be set
        (NO_BATCH, {"batch_size": "largest"}, "batch_size"),
        (
            replace(DESCRIPTION, knobs={}, untuned={"prefetch": "it is not taken"}),
            {},
            None,
        ),
        (
            replace(
                DESCRIPTION, fixed_batch_size=8, untuned={"batch_size": "of one size"}
            ),
            {"space": ONE_EACH},
            None,
        ),
        (
            replace(DESCRIPTION, accumulates_by=""),
            {"effective_batch_size": 64},
            "effective_batch_size",
        ),
    ],
)
def test_what_does_not_suit_the_workload_is_an_error_before_anything_is_trained(
    tmp_path, described, settings, key
):
    launcher = FakeLauncher({"describe": described})
    with pytest.raises(UsageError) as caught:
        tuned(tmp_path, launcher, **settings)
    assert caught.value.key == key
    assert all(reason in caught.value.problem for reason in described.untuned.values())
    assert [spec.role for spec in launcher.specs] == ["describe"]


@pytest.mark.parametrize(
    ("described", "limits", "message"),
    [
        (
            replace(
                DESCRIPTION,
                footprints=(Footprint(1, {"weights": 90 * MIB}, "walk", 0.2),),
            ),
            {"device_bytes": 50 * MIB},
            "54.0",
        ),
        (
            Measurement(Outcome.HOST_OOM, Evidence("large"), host_peak_bytes=51 * MIB),
            {"host_bytes": 50 * MIB},
            "51.0",
        ),
    ],
)
def test_a_batch_that_cannot_fit_is_said_before_anything_is_trained(
    tmp_path, described, limits, message
):
    launcher = FakeLauncher({"describe": described})
    with pytest.raises(NothingFitsError, match=rf"{message} MiB .* 50\.0 MiB"):
        tuned(tmp_path, launcher, **limits)
    assert {spec.role for spec in launcher.specs} == {"describe"}


class Autotuned(FakeLauncher):
    """`tf.data` that is fastest with AUTOTUNE."""

    def measure(self, spec):
        config = spec.config
        threads = 4 if config.workers == -1 else min(config.workers, 2)
        queue = 4 if config.max_queue_size == -1 else config.max_queue_size
        return super().measure(
            replace(spec, config=FitConfig(config.batch_size, threads, queue, False))
        )


def test_what_the_data_uses_now_is_the_baseline_and_a_tune_with_autotune_is_resumed(
    tmp_path,
):
    launcher = Autotuned({"describe": TF_DATA})
    before = tuned(tmp_path, launcher, max_trials=4)
    assert launcher.specs[0].config == FitConfig()  # described as it is written
    events, record = collect(tune, make_request(tmp_path, max_trials=6), launcher)
    assert (
        next(event for event in events if isinstance(event, Described)).log.trials
        == before.trials
    )
    assert record.speedup.baseline == FitConfig(64, -1, -1)
    assert (record.config.workers, record.data_kwargs["num_parallel_calls"]) == (-1, -1)
    assert {trial.config.workers for trial in record.trials} > {-1}
    assert result_files.decode(result_files.encode(record)) == record
    assert build_problem(
        make_request(tmp_path, baseline={"workers": 2}), TF_DATA
    ).baseline == FitConfig(64, 2, -1)


@pytest.mark.parametrize("kind", ["tf.data", "torch DataLoader", "generator"])
@pytest.mark.parametrize(("own", "words"), [(0, "0 processes"), (1, "1 process")])
def test_no_process_and_one_are_two_configs_and_the_users_own_is_the_baseline(
    tmp_path, kind, own, words
):
    described = replace(
        DESCRIPTION,
        input_kind=kind,
        knobs={"batch_size": "batch_size", "workers": "num_workers"},
        defaults={"workers": own, "prefetch_factor": 2, "use_multiprocessing": True},
    )
    problem = build_problem(make_request(tmp_path), described)

    assert problem.baseline.workers == own
    assert words in str(problem.baseline)
    tried = {config.workers for config in problem.space.configs()}
    assert tried >= {own, 1, 2}
    assert min(tried) >= 0  # tf.data chooses no number of processes


@pytest.mark.parametrize("own", [0, 1])
def test_numbers_of_workers_are_equivalent_only_where_keras_takes_them(tmp_path, own):
    of_data = replace(TF_DATA, defaults={"workers": own})

    assert build_problem(make_request(tmp_path), of_data).baseline.workers == own
    assert build_problem(
        make_request(tmp_path, baseline={"workers": own}), DESCRIPTION
    ).baseline == FitConfig(32, 1, 10, False)


@pytest.mark.parametrize(
    ("settings", "largest"), [({}, 200), ({"space": {"batch_size": [8, 64]}}, 64)]
)
def test_large_batches_that_leave_few_updates_are_not_searched_which_is_said_once(
    tmp_path, settings, largest
):
    problem = build_problem(
        make_request(tmp_path, min_updates=10, **settings), DESCRIPTION
    )
    assert problem.space.batch_size[-1] == largest
    assert ["min_updates: 1" in text for text in notices(problem)] == [True] * (
        not settings
    )
    partial = build_problem(
        make_request(tmp_path, min_updates=10, **settings),
        replace(DESCRIPTION, counts_last_batch=False),
    )
    assert ["an epoch of about 2,000 samples" in text for text in notices(partial)] == [
        True
    ] * (not settings)
    every = build_problem(
        make_request(tmp_path, min_updates=1, **settings), DESCRIPTION
    )
    assert not list(notices(every))


def test_steps_in_a_call_are_searched_where_compile_left_them_open_and_nothing_counts_batches(
    tmp_path,
):
    def steps_of(described, **settings):
        problem = build_problem(make_request(tmp_path, **settings), described)
        return problem.space.steps_per_execution, problem.baseline.steps_per_execution

    assert steps_of(TAKES_STEPS) == ((1, 8, 32), 1)
    assert steps_of(TAKES_STEPS, **STEPS) == ((8,), 1)
    stacking = replace(TAKES_STEPS, stacks_steps=True)
    assert steps_of(stacking) == ((1, 8, 32), 1)
    assert steps_of(stacking, baseline={"steps_per_execution": 4}) == ((1, 4, 8, 32), 4)
    assert steps_of(stacking, **STEPS) == ((8,), 1)
    counts = replace(TAKES_STEPS, batch_callbacks=("Schedule",))
    for described in (
        DESCRIPTION,
        replace(TAKES_STEPS, defaults={"steps_per_execution": 4}),
        counts,
    ):
        assert steps_of(described) == (None, None)


def test_code_that_fails_with_several_steps_in_a_call_is_tuned_with_one_unless_they_were_asked_for(
    tmp_path,
):
    def changed(spec, measured):
        if (spec.config.steps_per_execution or 1) > 1:
            return Measurement(
                Outcome.ERROR,
                Evidence("ValueError: shapes differ"),
                1.0,
                traceback="Traceback: boom",
            )
        rates = (
            "samples_per_second",
            "compute_samples_per_second",
            "input_samples_per_second",
        )
        return replace(
            measured, **{name: 100 * getattr(measured, name) for name in rates}
        )

    launcher = FakeLauncher({"describe": TAKES_STEPS}, changed=changed)
    events, record = collect(tune, make_request(tmp_path, max_trials=12), launcher)
    failed = [
        config
        for config in launcher.configs("measure")
        if config.steps_per_execution > 1
    ]
    assert (
        1 <= len(failed) <= 3
    )  # the first differ from the baseline in other ways, too
    assert record.config.steps_per_execution == 1
    assert sum(
        isinstance(event, str) and "ValueError: shapes differ" in event
        for event in events
    ) == len(failed)
    with pytest.raises(UserCodeError):
        tuned(tmp_path, launcher, **STEPS)


def test_a_similar_question_begins_with_what_is_known(tmp_path):
    space = {
        "workers": [1, 4],
        "max_queue_size": [4, 10],
        "use_multiprocessing": [False],
    }
    asked = {"device_bytes": 200 * MIB, "max_trials": 8, "space": space}
    before = tuned(tmp_path, **asked | {"device_bytes": 300 * MIB})
    warm, record = collect(tune, make_request(tmp_path, **asked), FakeLauncher())
    assert before.config.batch_size > record.config.batch_size
    assert record.device_peak_bytes <= 200 * MIB
    assert [run.config for run in record.runs].count(record.config) == 3
    trials = searched(warm)
    cold = tuned(tmp_path, **asked, workload_fingerprint="another").trials
    assert [each[0].why.startswith(Reason.WARM_START) for each in (trials, cold)] == [
        True,
        False,
    ]
    assert len(trials) < len(cold)


def test_processes_that_would_hang_are_not_tried(tmp_path):
    problem = build_problem(
        make_request(tmp_path), replace(DESCRIPTION, processes_hang=True)
    )
    assert problem.space.use_multiprocessing == (False,)


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_that_would_each_read_the_whole_stream_stay_as_they_are(
    tmp_path, workers
):
    whole = replace(
        DESCRIPTION,
        input_kind="torch DataLoader",
        knobs={
            "batch_size": "batch_size",
            "workers": "num_workers",
            "prefetch_factor": "prefetch_factor",
        },
        defaults={
            "workers": workers,
            "prefetch_factor": 4,
            "use_multiprocessing": True,
        },
        untuned={"workers": "each process would read the whole stream"},
    )
    problem = build_problem(make_request(tmp_path), whole)
    assert (problem.space.workers, problem.space.prefetch_factor) == ((workers,), (4,))
    assert len(problem.space.batch_size) > 1
    assert "not tuned: workers: each process would read the whole stream" in notices(
        problem
    )
    asked = make_request(tmp_path, batch_size=32, space={"workers": [0, 1, 2]})
    with pytest.raises(
        UsageError, match="nothing to tune: workers: each process would read"
    ):
        build_problem(asked, whole)


@pytest.mark.parametrize(("count", "baseline"), [(1, 32), (3, 33), (5, 35)])
def test_several_devices_share_the_baseline_and_whatever_is_tried(
    tmp_path, count, baseline
):
    problem = build_problem(
        make_request(tmp_path, placement=Placement(count=count)), DESCRIPTION
    )
    assert not any(batch % count for batch in problem.space.batch_size)
    assert problem.baseline.batch_size == baseline
    assert baseline in problem.space.batch_size


@pytest.mark.parametrize(("asked", "own"), [("keep", 32), (48, 48)])
def test_a_batch_size_that_is_kept_is_the_only_one_that_runs(tmp_path, asked, own):
    launcher = FakeLauncher()
    record = tuned(tmp_path, launcher, batch_size=asked, max_trials=4)
    assert {spec.config.batch_size for spec in launcher.specs[1:]} == {own}
    assert record.speedup.baseline == replace(BASELINE, batch_size=own)
    assert record.config == record.same_batch.config != record.speedup.baseline
    assert record.speedup.is_shown
    assert (
        len(launcher.configs("measure")) <= 4
    )  # those at the own batch size are no additional ones


def test_the_largest_batch_that_fits_is_found_without_an_oom_and_not_for_its_speed(
    tmp_path,
):
    """The rate saturates at batch sizes far below the limit, and few updates are left.

    Neither counts.
    """
    record = tuned(
        tmp_path,
        batch_size="largest",
        device_bytes=700 * MIB,
        min_updates=32,
        max_trials=12,
    )
    assert 0.8 * 700 * MIB < record.device_peak_bytes <= 700 * MIB
    assert record.config.batch_size == max(
        trial.config.batch_size for trial in record.trials
    )
    assert (
        replace(record.config, batch_size=32) == BASELINE
    )  # the other knobs are the user's
    assert not any(trial.measurement.outcome.is_oom for trial in record.trials)
    assert record.fastest.confirmed


@pytest.mark.parametrize(
    ("bend", "mib", "risks", "answer"),
    [
        (1.0, 100, [Outcome.OK], 88),
        (1.0, 300, [Outcome.OK], 288),
        (0.9, 300, [Outcome.OK, Outcome.OK], 512),
        (1.02, 200, [Outcome.DEVICE_OOM], 144),
        (1.3, 300, [], 72),  # one was certain to fit, and did not
    ],
)
def test_the_largest_batch_takes_risks_until_one_runs_out_of_memory(
    tmp_path, bend, mib, risks, answer
):
    def changed(spec, measured):
        device = int((10 + spec.config.batch_size**bend) * MIB)
        peaks = {"device_peak_bytes": device, "host_peak_bytes": 100 * MIB}
        if device > spec.limits.device_bytes:
            return Measurement(
                Outcome.DEVICE_OOM, Evidence("device full"), 20.0, **peaks
            )
        level = {"samples_per_second": 500.0, "steps": 20, "spread": 0.01}
        return replace(measured, outcome=Outcome.OK, **level, **peaks)

    sizes = [
        Footprint(size, {"activations": (10 + size) * MIB}, "a walk", 0.35)
        for size in (8, 32, 128)
    ]
    described = replace(DESCRIPTION, sample_count=None, footprints=tuple(sizes))
    launcher = FakeLauncher({"describe": described}, changed=changed)
    asked = {"batch_size": "largest", "device_bytes": mib * MIB, "max_trials": 12}
    record = tuned(tmp_path, launcher, **asked)
    taken = [t.measurement.outcome for t in record.trials if "likely to fit" in t.why]
    assert taken == risks
    assert record.config.batch_size == answer


@pytest.mark.parametrize("asked", ["keep", "largest", 64])
def test_two_batch_sizes_that_contradict_each_other_are_an_error(asked):
    contradictions = [
        {"space": {"batch_size": [16, 32]}},
        *([{"baseline": {"batch_size": 32}}] if asked == 64 else []),
    ]
    for settings in contradictions:
        with pytest.raises(UsageError) as raised:
            TuneSettings(batch_size=asked, **settings)
        assert raised.value.key == "batch_size"
