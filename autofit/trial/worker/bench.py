"""The model and the data of a trial, and the calls of `fit` on them; loads Keras."""

from __future__ import annotations

import contextlib
import gc
import shutil
import time
from collections.abc import Generator, Sequence
from typing import Any, TypeVar

import keras

from autofit import backends
from autofit.errors import UsageError
from autofit.trial.folder import explained_errors
from autofit.trial.worker.build import is_own
from autofit.trial.worker.drive import CALLS, Driver, TimedEnough
from autofit.trial.worker.job import TrialContext
from autofit.trial.worker.plan import NOTICE_SECONDS, Plan
from autofit.trial.worker.repeat import RepeatedBatches, repeated_tfdata
from autofit.workload import fit_options
from autofit.workload.fit_options import TrialCallbacks
from autofit.workload.inputs.fit_input import FitInput
from autofit.workload.workload import Workload

T = TypeVar("T")


class Bench:
    """The model and the data of a trial, and the calls of `fit` on them with the user's arguments.

    The calls may be of `predict` or `evaluate` instead.
    """

    def __init__(
        self,
        context: TrialContext,
        loaded: Workload,
        model: Any,
        data: FitInput,
        held_out: FitInput | None,
    ) -> None:
        self.context = context
        self.loaded = loaded
        self.model = model
        # for training and for validation
        self.data = data
        self.held_out = held_out
        self.method = CALLS[loaded.call]
        self.has_own_method = is_own(model, self.method.name)
        # Whether the input pipeline is timed alone after all else: what data that `fit` copies
        # leaves would count as training memory, and a model with a `fit` of its own loses its step
        # to the timing.
        self.times_input_last = data.one_fit or self.has_own_method
        folder = context.folder / "callbacks"  # for what the user's callbacks write
        shutil.rmtree(folder, ignore_errors=True)
        with explained_errors(context.folder, UsageError):
            folder.mkdir()
        self.options = fit_options.resolved(loaded.fit_kwargs, folder)
        self.callbacks: TrialCallbacks = self.options[fit_options.CALLBACKS]
        # of the last validation, without its first call
        self.validation_batch_seconds: float | None = None

    def play_all(self, plans: Generator[Plan, None, T]) -> T:
        """Play plans one after the other; return what they have read."""
        while True:
            try:
                plan = next(plans)
            except StopIteration as end:
                made: T = end.value
                return made
            self.play(plan)
            # its batches are let go before the next plan is made
            del plan

    def play(self, plan: Plan) -> None:
        """Train until the last clock is done; interrupt it then, unless it ends with its data."""
        gc.collect()  # otherwise batches that the previous run held would count for this one
        phase, clock = next(iter(plan.clocks.items()))
        self.context.enter(plan.first or phase)
        if not phase.counts:
            # otherwise memory of this run would count for the previous phase
            time.sleep(NOTICE_SECONDS)
        model = self.model if plan.model is None else plan.model
        # `predict` keeps all outputs until it ends. A trial has another number of batches than the
        # user's run, so it drops them, unless the user's code may read them.
        drops_outputs = self.method.name == fit_options.PREDICT
        if self.callbacks.run or self.has_own_method:
            drops_outputs = False
        driver = Driver(
            self.context, self.method, model, plan, drops_outputs=drops_outputs
        )
        callbacks = [*self.callbacks.run, driver] if plan.with_callbacks else [driver]
        given: dict[str, Any] = {"verbose": 0}
        for name in fit_options.IN_TRIALS:
            if name in self.options:
                given[name] = self.options[name]
        given |= {**plan.arguments, "callbacks": callbacks}
        # only `fit` has epochs
        calls = 1 if self.method.trains else given.get("epochs", 1)
        *_, last_clock = plan.clocks.values()
        for call in range(calls):
            if call:
                gc.collect()  # the tensors of the call before
            with contextlib.suppress(TimedEnough):
                getattr(model, self.method.name)(**self.method.accepted(given))
            if last_clock.done:
                break
        if driver.validation_batch_seconds is not None:
            self.validation_batch_seconds = driver.validation_batch_seconds
        if not clock.steps_done:
            name = self.method.name
            raise UsageError(
                f"the {name} of {type(model).__name__} ran without calling its callbacks after "
                f"each batch, or without self.{self.method.function}, so autofit cannot see its "
                f"steps. Make it call super().{name}(..., callbacks=callbacks)"
            )

    def repeating(
        self, batches: Sequence[Any], length: int, opening: Sequence[Any] = ()
    ) -> dict[str, Any]:
        """Return arguments of `fit` for `length` batches: of `opening` once, then of `batches`."""
        if self.has_own_method and self.data.fit_makes_batches:
            # such a method may accept nothing but arrays
            return self.data.pipeline_arguments(length)
        # On TensorFlow, Keras turns every input into a `tf.data.Dataset`, and takes a dataset
        # unchanged: `train_step` gets its elements with their structure (Keras 3.15
        # `TFDatasetAdapter`). On other backends, Keras takes the batches of a PyDataset one by one.
        if backends.current().uses_tfdata:
            data = repeated_tfdata(
                batches, length, opening, of_fixed_size=self.data.of_fixed_size
            )
        else:
            data = RepeatedBatches(batches, length, opening)
        return {"x": data, "shuffle": False}

    def idle_model(self, steps: int) -> Any:
        """Return a model whose step does nothing but wait for its batch.

        A model that has its own method is changed, and lost to training.
        """
        made = _idle()
        if self.has_own_method:
            step = self.method.step
            setattr(self.model, step, getattr(made, step))
            setattr(self.model, self.method.function, None)
            return self.model
        made.built = True  # it has nothing to build
        made.compile(jit_compile=False, steps_per_execution=steps)
        return made


def _idle() -> Any:
    loss = keras.ops.zeros(())
    outputs = keras.ops.zeros((1,))
    backend = backends.current()

    class Idle(keras.Model):  # type: ignore[misc]  # Keras ships no types
        def train_step(self, *arguments: Any) -> Any:
            backend.wait_for_copies(arguments[-1])
            logs = {"loss": loss}
            return (logs, arguments[0]) if backend.is_stateless else logs

        test_step = train_step

        def predict_step(self, *arguments: Any) -> Any:
            backend.wait_for_copies(arguments[-1])
            # the state is (trainable, non-trainable)
            return (outputs, arguments[0][1]) if backend.is_stateless else outputs

    return Idle()
