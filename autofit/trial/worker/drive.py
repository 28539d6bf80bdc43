"""Drive the clocks of a trial in a call of `fit`, `predict` or `evaluate`; loads Keras."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras

from autofit import backends
from autofit.records.states import Phase
from autofit.trial.worker.job import TrialContext
from autofit.trial.worker.plan import Plan


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
        """Return those arguments of `fit` that this method takes, as it takes them."""
        method = getattr(keras.Model, self.name)
        takes = inspect.signature(method).parameters
        if not self.trains and "steps_per_epoch" in given:
            given = {**given, "steps": given["steps_per_epoch"]}
        return {name: value for name, value in given.items() if name in takes}


CALLS = {
    "fit": KerasCall(
        "fit", "train_function", "train_step", "stop_training", Phase.TRAINING
    ),
    "predict": KerasCall(
        "predict", "predict_function", "predict_step", "stop_predicting"
    ),
    "evaluate": KerasCall("evaluate", "test_function", "test_step", "stop_evaluating"),
}


class TimedEnough(Exception):  # noqa: N818  # not an error
    """Ends a call of `fit` at once."""


class Driver(keras.callbacks.Callback):  # type: ignore[misc]  # Keras ships no types
    """Reports the steps of one call to the clocks of a plan, and ends the call with the last one.

    If it `drops_outputs`, `predict` gets a single number in place of each batch of outputs.
    """

    # A step of a clock is one call of the compiled function: `steps_per_execution` batches. The
    # function reports each call, because a batch callback would make `fit` wait for each step where
    # it dispatches them asynchronously. `model` of a callback is never read: on JAX, that would
    # synchronize the model's state.

    def __init__(
        self,
        context: TrialContext,
        method: KerasCall,
        model: Any,
        plan: Plan,
        *,
        drops_outputs: bool = False,
    ) -> None:
        super().__init__()
        self._context = context
        self._method = method
        self._driven = model
        self._execution = model.steps_per_execution
        self._backend = backends.current()
        self._dropped = keras.ops.ones((1,)) if drops_outputs else None
        # the present one, and those that wait
        self._clocks = list(plan.clocks.items())
        self._is_first = plan.first is not None
        self._plan = plan
        # batches at which a call of the present validation begins, without its first call
        self._later_calls: list[int] = []
        # of the last validation, without its first call
        self.validation_batch_seconds: float | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        # of this epoch
        self._batches = 0
        self._function = getattr(self._driven, self._method.function)
        setattr(self._driven, self._method.function, self._count)

    def on_train_end(self, logs: Any = None) -> None:
        setattr(self._driven, self._method.function, self._function)

    on_predict_begin = on_train_begin
    on_predict_end = on_train_end

    def _count(self, *arguments: Any) -> Any:
        made = self._function(*arguments)
        outputs, *state = made if self._backend.is_stateless else (made,)
        wait_for_end = self._backend.end_of(outputs)
        fit_waits = self._method.trains and not self._backend.steps_are_async
        if wait_for_end is not None and fit_waits:
            wait_for_end()
            wait_for_end = None
        phase, clock = self._clocks[0]
        clock.step_ended(wait_for_end, self._next_batches() / self._execution)
        if self._is_first:
            self._is_first = False
            self._context.enter(phase)
        if clock.done and not self._plan.ends_by_itself:
            setattr(self._driven, self._method.stop, True)
            if self._plan.is_abandoned and len(self._clocks) == 1:
                self.on_train_end()
                raise TimedEnough
        if self._dropped is None:
            return made
        return (self._dropped, *state) if state else self._dropped

    def _next_batches(self) -> int:
        """Count the batches of a call of the function: the last one of an epoch may have fewer."""
        batches: int = self._execution
        steps = self.params.get("steps") or 0
        left = steps - self._batches
        if left > 0:
            batches = min(batches, left)
        self._batches += batches
        return batches

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._batches = 0
        _, clock = self._clocks[0]
        clock.epoch_ended()
        if not clock.done:
            return
        has_next = len(self._clocks) > 1
        # a clock that is done ends its epoch by this flag; before another clock, `fit` goes on
        self._driven.stop_training = not has_next
        if has_next:
            self._clocks.pop(0)
            phase, _ = self._clocks[0]
            self._context.enter(phase)

    def on_test_begin(self, logs: Any = None) -> None:
        # these are the steps of `evaluate`, not those of a validation
        if not self._method.trains:
            self.on_train_begin()
            return
        self._later_calls.clear()
        self._context.enter(Phase.FIRST_VALIDATION)

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        if not self._method.trains or not batch:
            return
        if not self._later_calls:
            self._context.enter(Phase.VALIDATION)
            self._timed_since = time.perf_counter()
        self._later_calls.append(batch)

    def on_test_end(self, logs: Any = None) -> None:
        if not self._method.trains:
            self.on_train_end()
        elif self._later_calls:
            last = self._later_calls[-1]
            batches = self._plan.arguments.get("validation_steps") or math.inf
            end = min(last + self._execution, batches)
            seconds = time.perf_counter() - self._timed_since
            self.validation_batch_seconds = seconds / (end - self._later_calls[0])
