"""Which calls of `fit` time a config, in which order, and how they end."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from autofit.records.knobs import FitConfig
from autofit.records.states import Phase, Role
from autofit.records.trial import Limits, TrialSpec
from autofit.trial.worker import batch_shapes, step_clock, timing

SPEC = TrialSpec(Role.MEASURE, FitConfig(20), Limits(None, 2**33), 60, 2.5)
QUEUE, NO_QUEUE = FitConfig(None, 2, 4, False), FitConfig(None, 1, 10, False)
LONG = 100_000  # batches
# epochs of which only the gaps between them are read, and epochs that are timed whole
READS_EPOCHS = {"longest_epoch_seconds": 1e9}
SHORT_EPOCHS = {**READS_EPOCHS, "length": 20, "compute_samples_per_second": 1e3}
ALONE = ["first_step compute_alone", "input_alone"]


@pytest.fixture(autouse=True)
def backend(monkeypatch):
    """A backend that dispatches steps, and a time in which each step takes 20 ms."""
    now = [0.0]
    monkeypatch.setattr(step_clock.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(step_clock.time, "sleep", lambda seconds: None)
    backend = SimpleNamespace(
        steps_are_async=True,
        distribution_of=lambda model: None,
        compile_clock=lambda: float,
    )
    backend.now = now
    monkeypatch.setattr(timing.backends, "current", lambda: backend)
    return backend


def bench(
    *, trains=True, validates=False, length=LONG, config=NO_QUEUE, arrays=False, **spec
):
    """A bench of data with `length` batches of 20 samples, two in a call."""
    entered = []
    data = SimpleNamespace(
        applied=config,
        batch=lambda: "a batch",
        batch_samples=20,
        batch_seconds=0.0,
        batches_made=lambda: None,
        end_pipeline=lambda **options: None,
        ends_by_itself=not arrays,
        epoch_arguments=lambda steps, count: {
            "x": f"epochs of {steps}",
            "epochs": count,
        },
        epoch_batches=length,
        fit_arguments=lambda steps: {"x": f"{steps} steps", "epochs": 1},
        leaves_workers=False,
        one_fit=arrays,
        pipeline_arguments=lambda steps: {"x": f"{steps} steps"},
        sample_count=lambda: 20 * length,
        taken=None,
        validation_arguments=lambda steps: {"validation_steps": steps},
    )
    return SimpleNamespace(
        context=SimpleNamespace(
            enter=entered.append,
            entered=entered,
            folder=Path("none"),
            placement=SimpleNamespace(gpus=()),
            spec=replace(SPEC, **spec),
        ),
        data=data,
        held_out=data if validates else None,
        idle_model=lambda steps: SimpleNamespace(steps_per_execution=steps),
        method=SimpleNamespace(
            trains=trains, phase=Phase.TRAINING if trains else Phase.INFERENCE
        ),
        model=SimpleNamespace(steps_per_execution=2),
        options={},
        repeating=lambda batches, length, opening=(): {"x": batches},
        times_input_last=arrays,
    )


@pytest.fixture
def played(backend):
    """Play plans, each step of which is an epoch; return them, and what they have read."""

    def played(plans):
        listed = []
        while True:
            try:
                listed.append(next(plans))
            except StopIteration as end:
                return listed, end.value
            for clock in listed[-1].clocks.values():
                while not clock.done:
                    backend.now[0] += 0.02
                    clock.step_ended()
                    clock.epoch_ended()

    return played


def phases(plans):
    """The phases of each call, with that of its first step if it has one."""
    entered = ([plan.first, *plan.clocks] for plan in plans)
    return [" ".join(filter(None, each)) for each in entered]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, [*ALONE, "training"]),
        ({"trains": False}, [*ALONE, "inference"]),
        ({"compute_samples_per_second": 1e3}, ["input_alone", "first_step training"]),
        # what `fit` copies would count as memory of the training
        ({"arrays": True}, [ALONE[0], "training", ALONE[1]]),
        (
            {"arrays": True, "validates": True},
            [ALONE[0], "first_epoch training", ALONE[1]],
        ),
        ({"validates": True}, [*ALONE, "training"]),
        (READS_EPOCHS, [*ALONE, "epochs", "training"]),
    ],
)
def test_a_trial_times_step_and_input_alone_and_then_both(played, given, expected):
    plans, readings = played(timing.measure(bench(**given)))
    assert phases(plans) == expected
    assert readings.steady.rate().samples_per_second == pytest.approx(2 * 20 / 0.02)
    assert readings.input is not None


def test_a_trial_of_the_search_validates_if_it_is_asked_to(played):
    given = bench(validates=True)
    given.context.spec = replace(given.context.spec, validates=True)
    plans, _ = played(timing.measure(given))
    assert phases(plans) == [*ALONE, "first_epoch", "training"]
    # for about a second: what ends a validation would count for much in a few steps
    assert plans[-2].arguments["validation_steps"] == 100


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ["first_step first_epoch", "training"]),
        ({"reads_memory": False}, ["first_step training"]),
        ({"trains": False}, ["first_step inference"]),
        (READS_EPOCHS, ["first_step first_epoch epochs", "training"]),
        ({**READS_EPOCHS, "reads_memory": False}, ["first_step epochs", "training"]),
        # arrays are given to one call, unless only gaps are read
        ({"arrays": True}, ["first_step first_epoch training"]),
        (
            {"arrays": True, **SHORT_EPOCHS},
            ["first_step first_epoch epochs training"],
        ),
        (
            {"arrays": True, **READS_EPOCHS},
            ["first_step epochs", "first_epoch training"],
        ),
    ],
)
def test_a_confirming_run_trains_a_short_epoch_before_the_one_that_is_timed(
    played, given, expected
):
    plans, readings = played(timing.confirm(bench(validates=True, **given)))
    assert phases(plans) == expected
    assert (readings.compute, readings.input) == (None, None)
    # its validation is in the call of the short epoch, and nowhere else
    validated = [plan for plan in plans if "validation_freq" in plan.arguments]
    assert phases(validated) == [each for each in expected if "first_epoch" in each]
    assert not plans[-1].ends_by_itself
    assert all(plan.ends_by_itself for plan in plans[:-1])


def test_epochs_that_may_pass_before_the_timed_one_are_enough(played):
    plans, _ = played(timing.confirm(bench(arrays=True, validates=True)))
    assert plans[-1].arguments["epochs"] > step_clock.MOST_STEPS
    assert plans[-1].arguments["validation_steps"] == 10


@pytest.mark.parametrize(
    ("is_async", "arrays", "is_abandoned"),
    [(True, False, True), (False, False, False), (True, True, False)],
)
def test_only_the_last_call_of_a_trial_may_be_abandoned(
    played, backend, is_async, arrays, is_abandoned
):
    backend.steps_are_async = is_async
    plans, _ = played(timing.measure(bench(arrays=arrays)))
    *earlier, last = [plan.is_abandoned for plan in plans]
    assert last is is_abandoned
    assert not any(earlier)


FULL = [Phase.FILLING_QUEUE, Phase.QUEUE_FULL, Phase.TRAINING]


@pytest.mark.parametrize(
    ("config", "input_rate", "reads_memory", "expected", "drains"),
    [
        (NO_QUEUE, 1e3, True, [], False),
        (QUEUE, 1e3, True, FULL, True),
        (QUEUE, 1e3, False, [], True),
        # an input that is clearly faster than the step fills the queue in any run
        (QUEUE, 2e3, True, FULL, False),
        (QUEUE, 2e3, False, FULL, False),
    ],
)
def test_a_queue_is_filled_before_the_timing_if_the_input_is_faster(
    played, config, input_rate, reads_memory, expected, drains
):
    known = {"input_samples_per_second": input_rate, "compute_samples_per_second": 1e3}
    made = bench(config=config, reads_memory=reads_memory, **known)
    plans, readings = played(timing.confirm(made))
    assert made.context.entered == expected
    assert (readings.steady.prefilled > 0) is drains
    assert phases(plans)[-1].endswith("training")


def test_batches_of_several_shapes_are_trained_on_first_and_repeated(
    played, monkeypatch
):
    shapes = SimpleNamespace(
        asked=None, longest=[0] * 20, resized=lambda samples: ["a", "b"]
    )
    monkeypatch.setattr(batch_shapes, "load", lambda folder: shapes)
    made = bench()
    made.data.user_batches = lambda: iter("many batches")
    plans, _ = played(timing.measure(made))
    assert phases(plans) == ["first_longest longest_batch", *ALONE, "training"]
    assert plans[0].arguments == {"x": ["a", "b"]}
    assert plans[1].arguments == {"x": list("many bat")}
    assert not plans[0].with_callbacks
