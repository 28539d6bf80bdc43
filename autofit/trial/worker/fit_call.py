"""Call `fit`, `predict` or `evaluate` with the user's arguments, and with a driver that times the steps.

One call may drive several clocks in turn: each starts with an epoch, and the epoch ends when its clock is done.

    epoch 1: clock of the first epoch, then validation │ epoch 2, …: clock of the epochs, or of the timed run │ end
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from autofit import backends
from autofit.backends.protocol import JAX
from autofit.errors import UsageError
from autofit.records.states import Phase
from autofit.trial.worker.job import TrialContext
from autofit.trial.worker.step_clock import Epochs, StepClock
from autofit.workload import fit_options
from autofit.workload.fit_options import TrialCallbacks
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
    is_abandoned: bool = False  # whether it ends as soon as its clock is done, without waiting for dispatched steps


class _TimedEnough(Exception):  # noqa: N818  # not an error
    """Ends a call of `fit` at once."""


class FitCall:
    """Calls `fit`, or another `call`, of a model with the user's arguments."""

    def __init__(self, context: TrialContext, loaded: Workload) -> None:
        self._context, self.method = context, CALLS[loaded.call]
        folder = context.folder / "callbacks"  # for what the user's callbacks write
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self.options = fit_options.resolved(loaded.fit_kwargs, folder)
        self.callbacks: TrialCallbacks = self.options[fit_options.CALLBACKS]
        self.validation_batch_seconds: float | None = None  # of the last validation, without its first call

    def run(
        self,
        model: Any,
        arguments: Mapping[str, Any],
        runs: Sequence[Run],
        *,
        first: Phase | None = None,  # of the first step if that has a phase of its own
        ends_by_itself: bool = True,
        with_callbacks: bool = True,
    ) -> None:
        """Train until the last clock is done; interrupt the run then, unless it `ends_by_itself` with the data."""
        gc.collect()  # otherwise batches that the previous run held would count for this one
        self._context.enter(first or runs[0].phase)
        if not runs[0].phase.counts:
            time.sleep(NOTICE_SECONDS)  # otherwise memory of this run would count for the previous phase
        driver = self._driver(model, runs, has_first=first is not None, ends_by_itself=ends_by_itself)
        callbacks = [*(self.callbacks.run if with_callbacks else ()), driver]
        options = {name: self.options[name] for name in fit_options.IN_TRIALS if name in self.options}
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

    def _driver(self, model: Any, runs: Sequence[Run], *, has_first: bool, ends_by_itself: bool) -> Any:
        # A step of a clock is one call of the compiled function: `steps_per_execution` batches. The function reports each
        # call, because a batch callback would make `fit` wait for each step where it dispatches them asynchronously. The
        # callback never reads its own `model`: on JAX, that would synchronize the model's state.
        call, context, method, execution = self, self._context, self.method, model.steps_per_execution
        backend = backends.current()
        # `predict` keeps all outputs until it ends. A trial has another number of batches than the user's run, so it drops
        # them, unless the user's code may read them.
        drops_outputs = method.name == fit_options.PREDICT and not self.callbacks.run and not is_own(model, method.name)
        dropped = keras.ops.ones((1,)) if drops_outputs else None

        class Driver(keras.callbacks.Callback):  # type: ignore[misc]  # Keras ships no types
            def __init__(self) -> None:
                super().__init__()
                self._run, *self._waiting = runs

            def on_train_begin(self, logs: Any = None) -> None:
                self._batches, self._function = 0, getattr(model, method.function)  # batches of this epoch
                setattr(model, method.function, self._counted)

            def on_train_end(self, logs: Any = None) -> None:
                setattr(model, method.function, self._function)

            on_predict_begin, on_predict_end = on_train_begin, on_train_end

            def _counted(self, *arguments: Any) -> Any:
                made = self._function(*arguments)
                outputs, *state = made if backend.name == JAX else (made,)  # JAX also returns the model's state
                wait_for_end = backend.end_of(outputs)
                if wait_for_end is not None and method.trains and not backend.steps_are_async:
                    wait_for_end()
                    wait_for_end = None
                clock, steps = self._run.clock, self.params.get("steps") or 0
                batches = min(execution, steps - self._batches) if self._batches < steps else execution
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
                if not method.trains:  # these are the steps of `evaluate`, not those of a validation
                    self.on_train_begin()
                    return
                self._first_batch = 0
                context.enter(Phase.FIRST_VALIDATION)

            def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
                self._last_batch = batch
                if batch and not self._first_batch:
                    context.enter(Phase.VALIDATION)
                    self._tested_at, self._first_batch = time.perf_counter(), batch

            def on_test_end(self, logs: Any = None) -> None:
                if not method.trains:
                    self.on_train_end()
                elif self._first_batch:
                    batches = self._last_batch + execution - self._first_batch
                    call.validation_batch_seconds = (time.perf_counter() - self._tested_at) / batches

        return Driver()


def idle(model: Any, call: KerasCall, steps: int) -> Any:
    """Return a model whose step does nothing: a new one, or `model` itself, changed, if it has a `call` of its own."""
    loss, outputs = keras.ops.zeros(()), keras.ops.zeros((1,))
    is_stateless = keras.backend.backend() == "jax"

    class Idle(keras.Model):  # type: ignore[misc]  # Keras ships no types
        def train_step(self, *arguments: Any) -> Any:
            return ({"loss": loss}, arguments[0]) if is_stateless else {"loss": loss}

        test_step = train_step

        def predict_step(self, *arguments: Any) -> Any:
            return (outputs, arguments[0][1]) if is_stateless else outputs  # the state is (trainable, non-trainable)

    made = Idle()
    if is_own(model, call.name):
        setattr(model, call.step, getattr(made, call.step))
        setattr(model, call.function, None)
        return model
    made.built = True  # it has nothing to build
    made.compile(jit_compile=False, steps_per_execution=steps)
    return made
