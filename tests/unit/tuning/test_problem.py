"""The start of a search: space, baseline, description and warm start."""

from dataclasses import replace

import pytest

from autofit.errors import NothingFitsError, UsageError, UserCodeError
from autofit.records.description import Footprint
from autofit.records.events import Described, Notice
from autofit.records.machine import Placement
from autofit.records.states import Outcome
from autofit.records.trial import Evidence, FitConfig, Measurement
from autofit.report.html import page
from autofit.search.frontier import LABELS, Reason
from autofit.storage import result_files
from autofit.tuning.problem import build_problem
from tests.fakes import DESCRIPTION, MACHINE, MIB, FakeLauncher, collect, make_request, searched, tune


@pytest.mark.parametrize(("backend", "same"), [("tensorflow", True), ("jax", False), ("torch", False)])
def test_a_tune_on_another_backend_is_no_similar_one(tmp_path, backend, same):
    request, described = make_request(tmp_path), replace(DESCRIPTION, versions={"backend": backend})
    assert (request.warm_start_key(described) == request.warm_start_key(DESCRIPTION)) is same


def test_a_batch_that_cannot_fit_is_said_before_anything_is_trained(tmp_path):
    launcher = FakeLauncher(
        {"describe": replace(DESCRIPTION, footprints=(Footprint(1, {"weights": 90 * MIB}, "walk", 0.2),))}
    )
    with pytest.raises(NothingFitsError, match=r"54\.0 MiB .* 50\.0 MiB"):
        collect(tune, make_request(tmp_path, device_bytes=50 * MIB), launcher)
    assert [spec.role for spec in launcher.specs] == ["describe"]


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
    assert ">auto thr<" in page.render(resumed)


def test_autotune_is_an_error_where_the_data_is_no_tf_data(tmp_path):
    request = make_request(tmp_path, space={"workers": [-1, 2]})
    with pytest.raises(UsageError) as caught:
        collect(tune, request, FakeLauncher())
    assert caught.value.key == "space.workers"


def test_large_batches_that_leave_few_updates_are_not_searched_which_is_said_once(tmp_path):
    events, record = collect(tune, make_request(tmp_path, min_updates=10, max_trials=12), FakeLauncher())
    assert max(trial.config.batch_size for trial in record.trials) <= 200
    (notice,) = [e.text for e in events if isinstance(e, Notice) and "updates" in e.text]
    assert "min_updates: 1" in notice
    events, record = collect(tune, make_request(tmp_path, min_updates=1, max_trials=12), FakeLauncher())
    assert max(trial.config.batch_size for trial in record.trials) > 200
    assert not [e for e in events if isinstance(e, Notice) and "updates" in e.text]
    request = make_request(tmp_path, min_updates=10, space={"batch_size": [8, 64]})  # nothing is left out
    events, _ = collect(tune, request, FakeLauncher())
    assert not [e for e in events if isinstance(e, Notice) and "updates" in e.text]


def test_a_space_that_does_not_suit_the_data_is_said_before_anything_is_trained(tmp_path):
    launcher = FakeLauncher({"describe": replace(DESCRIPTION, knobs={"batch_size": "batch_size"})})
    with pytest.raises(UsageError, match=r"^space: workers "):
        collect(tune, make_request(tmp_path, space={"workers": [1]}), launcher)
    assert [spec.role for spec in launcher.specs] == ["describe"]


TAKES_STEPS = replace(DESCRIPTION, defaults={"steps_per_execution": 1})


def test_steps_in_a_call_are_searched_where_compile_left_them_open_and_nothing_counts_batches(tmp_path):
    request = make_request(tmp_path)
    problem = build_problem(request, TAKES_STEPS)
    assert problem.space.steps_per_execution == (1, 8, 32)
    assert problem.baseline.steps_per_execution == 1
    counts = replace(TAKES_STEPS, batch_callbacks=("Schedule",))
    for described in (DESCRIPTION, replace(TAKES_STEPS, defaults={"steps_per_execution": 4}), counts):
        problem = build_problem(request, described)
        assert (problem.space.steps_per_execution, problem.baseline.steps_per_execution) == (None, None)


def test_a_baseline_has_autotune_only_for_tf_data(tmp_path):
    with pytest.raises(UsageError, match="only a factory of"):
        build_problem(make_request(tmp_path, baseline={"workers": -1}), DESCRIPTION)


class OneStep(FakeLauncher):
    """A workload whose code fails with several steps in a call."""

    def measure(self, spec):
        if (spec.config.steps_per_execution or 1) > 1:
            return Measurement(Outcome.ERROR, Evidence("ValueError: shapes differ"), 1.0, traceback="Traceback: boom")
        measured = super().measure(spec)
        rates = ("samples_per_second", "compute_samples_per_second", "input_samples_per_second")
        return replace(measured, **{name: 100 * getattr(measured, name) for name in rates})


def test_code_that_fails_with_several_steps_in_a_call_is_tuned_with_one_unless_they_were_asked_for(tmp_path):
    launcher = OneStep({"describe": TAKES_STEPS})
    shown, record = collect(tune, make_request(tmp_path, max_trials=12), launcher)
    failed = [spec.config for spec in launcher.specs if (spec.config.steps_per_execution or 1) > 1]
    assert 1 <= len(failed) <= 3  # the first differ from the baseline in other ways, too
    assert record.config.steps_per_execution == 1
    told = [event.text for event in shown if isinstance(event, Notice) and "ValueError: shapes differ" in event.text]
    assert len(told) == len(failed)
    asked = make_request(tmp_path, space={"batch_size": [32], "steps_per_execution": [8]})
    with pytest.raises(UserCodeError):
        collect(tune, asked, OneStep({"describe": TAKES_STEPS}))


def test_an_epoch_of_given_length_is_divided_by_the_steps_in_a_call(tmp_path):
    source = replace(make_request(tmp_path).call_source, fit_kwargs={"steps_per_epoch": 12})
    request = replace(make_request(tmp_path, space={"batch_size": [32, 64]}), call_source=source)
    space = build_problem(request, replace(TAKES_STEPS, sample_count=12 * 64)).space
    assert {(point.batch_size, point.steps_per_execution) for point in space.configs()} == {(32, 1), (32, 8), (64, 1)}


def test_steps_in_a_call_that_are_named_need_a_model_that_takes_them(tmp_path):
    asked = {"space": {"batch_size": [32], "steps_per_execution": [4]}, "baseline": {"workers": 1}}
    problem = build_problem(make_request(tmp_path, **asked), TAKES_STEPS)
    assert problem.space.steps_per_execution == (4,)
    assert problem.baseline.steps_per_execution == 1
    with pytest.raises(UsageError, match=r"^space: steps_per_execution is given, but it cannot be set"):
        build_problem(make_request(tmp_path, **asked), DESCRIPTION)


def test_what_cannot_even_be_described_says_what_it_needs(tmp_path):
    class Large(FakeLauncher):
        def run(self, spec):
            if spec.role == "describe":
                self.specs.append(spec)
                return Measurement(Outcome.HOST_OOM, Evidence("too large"), host_peak_bytes=51 * MIB)
            return (yield from super().run(spec))

    with pytest.raises(NothingFitsError, match=r"51\.0 MiB .* 50\.0 MiB"):
        collect(tune, make_request(tmp_path, host_bytes=50 * MIB), Large())


def test_a_similar_question_begins_with_what_is_known(tmp_path):
    _, before = collect(tune, make_request(tmp_path, device_bytes=300 * MIB, max_trials=12), FakeLauncher())
    cold, _ = collect(tune, make_request(tmp_path / "cold", device_bytes=200 * MIB, max_trials=12), FakeLauncher())
    warm, record = collect(tune, make_request(tmp_path, device_bytes=200 * MIB, max_trials=12), FakeLauncher())
    assert before.config.batch_size > record.config.batch_size
    assert len(searched(warm)) < len(searched(cold))
    assert searched(warm)[0].why.startswith(LABELS[Reason.WARM_START])
    assert record.device_peak_bytes <= 200 * MIB
    assert [run.config for run in record.runs].count(record.config) == 3


def test_another_model_or_machine_is_not_similar(tmp_path):
    collect(tune, make_request(tmp_path), FakeLauncher())
    for changes in ({"workload_fingerprint": "y"}, {"machine": replace(MACHINE, cores=2)}):
        events, _ = collect(tune, make_request(tmp_path, **changes), FakeLauncher())
        assert not searched(events)[0].why.startswith(LABELS[Reason.WARM_START])


@pytest.mark.parametrize(("count", "baseline"), [(1, 32), (2, 32), (3, 33), (5, 35)])
def test_several_devices_share_the_baseline_and_whatever_is_tried(tmp_path, count, baseline):
    request = make_request(tmp_path, placement=Placement(count=count))
    _, record = collect(tune, request, FakeLauncher())
    tried = {trial.config.batch_size for trial in (*record.trials, *record.runs)}
    assert all(batch % count == 0 for batch in tried)
    assert record.speedup.baseline.batch_size == baseline
    assert record.placement == Placement(count=count)
    assert record.device == ("CPU" if count == 1 else f"CPU as {count} devices")
