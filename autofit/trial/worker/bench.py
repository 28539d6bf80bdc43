"""Build the user's model, open the data, and call `fit`, `predict` or `evaluate` with a driver that times the steps.

One call may drive several clocks in turn: each starts with an epoch, and the epoch ends when its clock is done.

    epoch 1: clock of the first epoch, then validation │ epoch 2, …: clock of the epochs, or of the timed run │ end
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import math
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras

from autofit import backends
from autofit.backends.protocol import JAX
from autofit.errors import UsageError
from autofit.records.states import Phase
from autofit.records.trial import FitConfig
from autofit.trial.folder import explained_errors
from autofit.trial.wire import Message
from autofit.trial.worker.job import TrialContext
from autofit.trial.worker.step_clock import Epochs, StepClock
from autofit.workload import accumulation, fit_options
from autofit.workload.binding import resolve_reference
from autofit.workload.fit_options import VALIDATION_BATCH_SIZE, VALIDATION_SPLIT, TrialCallbacks
from autofit.workload.inputs.arrays import Arrays
from autofit.workload.inputs.fit_input import FitInput
from autofit.workload.inputs.kinds import open_input
from autofit.workload.inputs.knobs import is_pydataset
from autofit.workload.inputs.tfdata import reserved
from autofit.workload.script.given import GivenData
from autofit.workload.workload import Workload

NOTICE_SECONDS = 0.1  # enough for the driver to read the memory of all processes


@dataclass(frozen=True)
class KerasCall:
    """A method of `keras.Model` that runs a step on each batch."""

    name: str
    function: str  # compiled; it runs the model's `step`
    step: str
    stop: str  # an attribute of the model: the method ends after a step if it is true
    phase: Phase = Phase.INFERENCE

    @property
    def trains(self) -> bool:
        return self.phase is Phase.TRAINING

    def accepted(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments of `fit` as this method takes them, without those that it does not take."""
        takes = inspect.signature(getattr(keras.Model, self.name)).parameters
        if not self.trains and "steps_per_epoch" in given:
            given = {**given, "steps": given["steps_per_epoch"]}
        return {name: value for name, value in given.items() if name in takes}


CALLS = {
    "fit": KerasCall("fit", "train_function", "train_step", "stop_training", Phase.TRAINING),
    "predict": KerasCall("predict", "predict_function", "predict_step", "stop_predicting"),
    "evaluate": KerasCall("evaluate", "test_function", "test_step", "stop_evaluating"),
}


def is_own(model: Any, method: str) -> bool:
    """Return whether a model's method is not Keras's, as in keras-hub, whose `fit` preprocesses the data."""
    return method in vars(model) or getattr(type(model), method) is not getattr(keras.Model, method)


@dataclass(frozen=True)
class Run:
    """A part of a `fit` call, timed by a clock."""

    clock: StepClock | Epochs
    phase: Phase
    # whether it ends as soon as its clock is done, without waiting for dispatched steps
    is_abandoned: bool = False


class _TimedEnough(Exception):  # noqa: N818  # not an error
    """Ends a call of `fit` at once."""


class Bench:
    """The model and the data of a trial, and the call of `fit` on them, or another `call`, with the user's arguments."""

    def __init__(
        self,
        context: TrialContext,
        loaded: Workload,
        model: Any,
        data: FitInput,
        held_out: FitInput | None,
    ) -> None:
        self.context = context
        self.model = model
        # for training and for validation
        self.data = data
        self.held_out = held_out
        self.method = CALLS[loaded.call]
        self.has_own_method = is_own(model, self.method.name)
        # Whether the input pipeline is timed alone after all else: what data that `fit` copies leaves would count as
        # training memory, and a model with a `fit` of its own loses its step to the timing.
        self.times_input_last = data.one_fit or self.has_own_method
        folder = context.folder / "callbacks"  # for what the user's callbacks write
        shutil.rmtree(folder, ignore_errors=True)
        with explained_errors(context.folder, UsageError):
            folder.mkdir()
        self.options = fit_options.resolved(loaded.fit_kwargs, folder)
        self.callbacks: TrialCallbacks = self.options[fit_options.CALLBACKS]
        # of the last validation, without its first call
        self.validation_batch_seconds: float | None = None
        self.validation_batches: float = math.inf  # that it has, if that is known

    def run(
        self,
        arguments: Mapping[str, Any],
        runs: Sequence[Run],
        *,
        model: Any = None,  # instead of the trial's own
        first: Phase | None = None,  # of the first step if that has a phase of its own
        ends_by_itself: bool = True,
        with_callbacks: bool = True,
    ) -> None:
        """Train until the last clock is done; interrupt the run then, unless it `ends_by_itself` with the data."""
        gc.collect()  # otherwise batches that the previous run held would count for this one
        self.context.enter(first or runs[0].phase)
        if not runs[0].phase.counts:
            # otherwise memory of this run would count for the previous phase
            time.sleep(NOTICE_SECONDS)
        model = self.model if model is None else model
        driver = self._driver(
            model, runs, has_first=first is not None, ends_by_itself=ends_by_itself
        )
        callbacks = [*(self.callbacks.run if with_callbacks else ()), driver]
        options = {
            name: self.options[name] for name in fit_options.IN_TRIALS if name in self.options
        }
        given = {"verbose": 0, **options, **arguments, "callbacks": callbacks}
        repeats = 1 if self.method.trains else given.get("epochs", 1)  # only `fit` has epochs
        for repeat in range(repeats):
            if repeat:
                gc.collect()  # the tensors of the call before
            with contextlib.suppress(_TimedEnough):
                getattr(model, self.method.name)(**self.method.accepted(given))
            if runs[-1].clock.done:
                break
        if not runs[0].clock.steps_done:
            raise UsageError(
                f"the {self.method.name} of {type(model).__name__} ran without calling its callbacks after each batch, or "
                f"without self.{self.method.function}, so autofit cannot see its steps. Make it call "
                f"super().{self.method.name}(..., callbacks=callbacks)"
            )

    def _driver(
        self, model: Any, runs: Sequence[Run], *, has_first: bool, ends_by_itself: bool
    ) -> Any:
        # A step of a clock is one call of the compiled function: `steps_per_execution` batches. The function reports each
        # call, because a batch callback would make `fit` wait for each step where it dispatches them asynchronously. The
        # callback never reads its own `model`: on JAX, that would synchronize the model's state.
        bench = self
        context = self.context
        method = self.method
        execution = model.steps_per_execution
        backend = backends.current()
        # `predict` keeps all outputs until it ends. A trial has another number of batches than the user's run, so it drops
        # them, unless the user's code may read them.
        drops_outputs = (
            method.name == fit_options.PREDICT
            and not self.callbacks.run
            and not self.has_own_method
        )
        dropped = keras.ops.ones((1,)) if drops_outputs else None

        class Driver(keras.callbacks.Callback):  # type: ignore[misc]  # Keras ships no types
            def __init__(self) -> None:
                super().__init__()
                self._run, *self._waiting = runs

            def on_train_begin(self, logs: Any = None) -> None:
                # batches of this epoch
                self._batches = 0
                self._function = getattr(model, method.function)
                setattr(model, method.function, self._counted)

            def on_train_end(self, logs: Any = None) -> None:
                setattr(model, method.function, self._function)

            on_predict_begin = on_train_begin
            on_predict_end = on_train_end

            def _counted(self, *arguments: Any) -> Any:
                made = self._function(*arguments)
                # JAX also returns the model's state
                outputs, *state = made if backend.name == JAX else (made,)
                wait_for_end = backend.end_of(outputs)
                if wait_for_end is not None and method.trains and not backend.steps_are_async:
                    wait_for_end()
                    wait_for_end = None
                clock = self._run.clock
                steps = self.params.get("steps") or 0
                batches = (
                    min(execution, steps - self._batches) if self._batches < steps else execution
                )
                self._batches += batches
                clock.step_ended(wait_for_end, batches / execution)
                if has_first and clock is runs[0].clock and clock.steps_done == 1:
                    context.enter(self._run.phase)
                if clock.done and not ends_by_itself:
                    setattr(model, method.stop, True)
                if clock.done and self._run is runs[-1] and self._run.is_abandoned:
                    self.on_train_end()
                    raise _TimedEnough
                return made if dropped is None else (dropped, *state) if state else dropped

            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                self._batches = 0
                self._run.clock.epoch_ended()
                if self._run.clock.done:
                    model.stop_training = not self._waiting
                if self._run.clock.done and self._waiting:
                    self._run = self._waiting.pop(0)
                    context.enter(self._run.phase)

            def on_test_begin(self, logs: Any = None) -> None:
                self._first_batch = 0
                if method.trains:
                    context.enter(Phase.FIRST_VALIDATION)
                else:  # these are the steps of `evaluate`, not those of a validation
                    self.on_train_begin()

            def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
                self._last_batch = batch
                if method.trains and batch and not self._first_batch:
                    context.enter(Phase.VALIDATION)
                    self._tested_at = time.perf_counter()
                    self._first_batch = batch

            def on_test_end(self, logs: Any = None) -> None:
                if not method.trains:
                    self.on_train_end()
                elif self._first_batch:
                    batches = (
                        min(self._last_batch + execution, bench.validation_batches)
                        - self._first_batch
                    )
                    bench.validation_batch_seconds = (
                        time.perf_counter() - self._tested_at
                    ) / batches

        return Driver()

    def idle_model(self, steps: int) -> Any:
        """Return a model whose step awaits its batch: a new one, or the trial's own, changed, if it has its own method."""
        loss = keras.ops.zeros(())
        outputs = keras.ops.zeros((1,))
        is_stateless = keras.backend.backend() == JAX
        backend = backends.current()

        class Idle(keras.Model):  # type: ignore[misc]  # Keras ships no types
            def train_step(self, *arguments: Any) -> Any:
                backend.wait_for_copies(arguments[-1])
                return ({"loss": loss}, arguments[0]) if is_stateless else {"loss": loss}

            test_step = train_step

            def predict_step(self, *arguments: Any) -> Any:
                backend.wait_for_copies(arguments[-1])
                # the state is (trainable, non-trainable)
                return (outputs, arguments[0][1]) if is_stateless else outputs

        made = Idle()
        if self.has_own_method:
            setattr(self.model, self.method.step, getattr(made, self.method.step))
            setattr(self.model, self.method.function, None)
            return self.model
        made.built = True  # it has nothing to build
        made.compile(jit_compile=False, steps_per_execution=steps)
        return made


def build_model(context: TrialContext, loaded: Workload) -> Any:
    """Build the compiled model, with the requested dtype policy, distribution and gradient accumulation."""
    context.enter(Phase.BUILDING)
    build = resolve_reference("build_model", loaded.build_model)
    kwargs = dict(loaded.model_kwargs)
    steps = accumulation.steps_of(context.spec.config.batch_size, context.spec.effective_batch_size)
    if takes_batch_size(build, kwargs) and context.spec.config.batch_size is not None:
        kwargs["batch_size"] = context.spec.config.batch_size
    if steps > 1 and accumulation.is_argument_of(build):
        kwargs[accumulation.NAME] = steps
    if loaded.dtype_policy is not None:
        keras.config.set_dtype_policy(loaded.dtype_policy)
    is_distributed = loaded.distribution is not None and context.placement.count > 1
    with (
        backends.current().distributing(context.placement)
        if is_distributed
        else contextlib.nullcontext()
    ):
        model = build(**kwargs)
    # predict needs no `compile`
    compiled = "" if loaded.call == fit_options.PREDICT else "compiled "
    if not isinstance(model, keras.Model):
        returned = f"{type(model).__module__}.{type(model).__qualname__}"
        raise UsageError(
            f"build_model returned a {returned}; it must return a {compiled}keras.Model of Keras 3"
        )
    if compiled and not model.compiled:
        raise UsageError(
            "build_model returned a model that is not compiled; call model.compile(...) in build_model"
        )
    if steps > 1 and not accumulation.is_argument_of(build):
        accumulation.accumulate(model, steps)
    if loaded.jit_compile is not None:
        model.jit_compile = loaded.jit_compile
    if context.spec.config.steps_per_execution is not None:
        model.steps_per_execution = context.spec.config.steps_per_execution
    return model


def build_variables(model: Any, batch: Any) -> None:
    """Create the variables of optimizer and metrics before the first step, if the step would create the same ones."""
    # On TensorFlow, a step that creates variables is traced twice, and tracing takes most of the time until the first step
    # runs. Nothing is done on other backends, where `fit` creates the variables first; for a model whose step has the
    # user's own methods, which may use other variables, or none; and for a distributed model, whose strategy creates them.
    if (
        keras.backend.backend() != "tensorflow"
        or not model.built
        or distribution_of(model) is not None
    ):
        return
    if not any(
        is_own(model, method) for method in ("train_step", "compute_loss", "compute_metrics")
    ):
        # the step creates what is missing, or raises the same error
        with contextlib.suppress(Exception):
            model._symbolic_build(data_batch=batch)


def distribution_of(model: Any) -> tuple[str, int] | None:
    """Return the name of the class that distributes a model, and the number of devices; None for one that is not."""
    strategy = getattr(model, "distribute_strategy", None)  # TensorFlow only
    if strategy is not None and strategy is not sys.modules["tensorflow"].distribute.get_strategy():
        return type(strategy).__name__, int(strategy.num_replicas_in_sync)
    layout = keras.distribution.distribution()
    return None if layout is None else (type(layout).__name__, int(layout.device_mesh.devices.size))


def takes_batch_size(build_model: Callable[..., Any], model_kwargs: Mapping[str, Any]) -> bool:
    """Return whether `build_model` is given the tried batch size: it has a parameter for it, and the user no value."""
    return "batch_size" not in model_kwargs and accumulation.is_argument_of(
        build_model, "batch_size"
    )


def open_data(
    context: TrialContext, loaded: Workload, config: FitConfig
) -> tuple[FitInput, FitInput | None]:
    """Open the training data with a config, and the validation data, if any, with a batch size of its own."""
    context.enter(Phase.OPENING)
    data = resolve_reference("data", loaded.data)
    report = context.report_error
    of_validation = replace(
        config, batch_size=loaded.fit_kwargs.get(VALIDATION_BATCH_SIZE) or config.batch_size
    )
    opened = open_input(data, loaded.data_kwargs, config, report)
    if isinstance(data, GivenData):
        data.require_asked(config.batch_size, opened)
    held_out: FitInput | None = None
    if loaded.call == fit_options.PREDICT and isinstance(opened, Arrays):
        opened = opened.without_targets()
    if share := loaded.fit_kwargs.get(VALIDATION_SPLIT):
        held_out = (
            opened
            if of_validation == config
            else open_input(data, loaded.data_kwargs, of_validation, report)
        )
        if not isinstance(opened, Arrays) or not isinstance(held_out, Arrays):
            raise UsageError(
                f"validation_split divides arrays, but the data is a {opened.kind}; pass the validation data as validation",
                key=f"fit_kwargs.{VALIDATION_SPLIT}",
            )
        opened = opened.split(share)[0]
        held_out = held_out.split(share)[1]
    elif loaded.validation is not None:
        validation = resolve_reference("validation", loaded.validation)
        if is_pydataset(validation):
            of_validation = replace(of_validation, batch_size=None)
        held_out = open_input(validation, loaded.validation_kwargs, of_validation, report)
    # what the data's caches take in the user's own run, in addition to this trial's
    if reserved.bytes:
        context.send(Message(reserved_bytes=reserved.bytes))
    return opened, held_out
