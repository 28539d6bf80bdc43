"""Call `fit` with the user's arguments, and with a callback that times the steps.

One call may drive several clocks in turn: each starts with an epoch, and the epoch ends when its clock is done.

    epoch 1: clock of the first epoch, then validation │ epoch 2, …: clock of the timed run │ end
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autofit import backends
from autofit.errors import UsageError
from autofit.records.states import Phase
from autofit.trial.worker.job import TrialContext
from autofit.trial.worker.step_clock import StepClock
from autofit.workload import fit_options
from autofit.workload.workload import Workload

_LEFT_OUT = (  # callbacks of Keras that write files, end a training, or wait for epochs that a trial does not have
    "BackupAndRestore",
    "CSVLogger",
    "EarlyStopping",
    "ModelCheckpoint",
    "OrbaxCheckpoint",
    "ReduceLROnPlateau",
    "RemoteMonitor",
    "TensorBoard",
    "TerminateOnNaN",
)
_NOTICE_SECONDS = 0.1  # enough for the driver to read the memory of all processes


@dataclass(frozen=True)
class Run:
    """A part of a `fit` call, timed by a clock; `first` is the phase of its first step if that is not `phase`.

    If `is_abandoned`, the run ends as soon as its clock is done, without waiting for dispatched steps. `at_end` is called
    after each step from then on.
    """

    clock: StepClock
    phase: Phase
    first: Phase | None = None
    is_abandoned: bool = False
    at_end: Callable[[], None] = lambda: None


class _Enough(Exception):  # noqa: N818  # not an error
    """Ends a call of `fit` at once."""


class FitCall:
    """Calls the `fit` of a model with the user's arguments; `flavour` is the model's module, `keras` or `tf_keras`."""

    def __init__(self, loaded: Workload, flavour: Any) -> None:
        self._flavour = flavour
        self.options = fit_options.resolved(loaded.fit_kwargs)
        made = self.options.get(fit_options.CALLBACKS) or []
        made = list(made) if isinstance(made, list | tuple) else [made]
        self._left_out = [callback for callback in made if _is_left_out(callback)]
        self._callbacks = [callback for callback in made if not _is_left_out(callback)]

    def notices(self) -> Iterator[str]:
        """Yield a notice about the callbacks that trials leave out."""
        if self._left_out:
            names = ", ".join(sorted({type(callback).__name__ for callback in self._left_out}))
            why = "write files, end the training or wait for whole epochs"
            yield f"trials leave out callbacks that {why}: {names}. The cost of such callbacks is not measured"

    def run(
        self,
        context: TrialContext,
        model: Any,
        arguments: Mapping[str, Any],
        runs: Sequence[Run],
        *,
        ends_by_itself: bool = True,
        with_callbacks: bool = True,
    ) -> None:
        """Train until the last clock is done; the first of `runs` starts with the call.

        If `ends_by_itself`, the data ends with the last clock. Otherwise the run is interrupted and leaves workers behind.
        """
        gc.collect()  # otherwise batches that the previous run held would count for this one
        context.enter(runs[0].first or runs[0].phase)
        if not runs[0].phase.counts:
            time.sleep(_NOTICE_SECONDS)  # otherwise memory of this run would count for the previous phase
        driver = self._driver(context, model, runs, ends_by_itself=ends_by_itself)
        callbacks = [*(self._callbacks if with_callbacks else []), driver]
        with contextlib.suppress(_Enough):
            model.fit(**{"verbose": 0, **fit_options.of_training(self.options), **arguments, "callbacks": callbacks})
        if not runs[0].clock.steps_done:
            raise UsageError(
                f"the fit of {type(model).__name__} trained without calling its callbacks after each batch, or without "
                "self.train_function, so autofit cannot see its steps. Make it call super().fit(..., callbacks=callbacks)"
            )

    def _driver(self, context: TrialContext, model: Any, runs: Sequence[Run], *, ends_by_itself: bool) -> Any:
        """Make the callback that drives the clocks and reports the phases.

        A step of a clock is one call of the train function: `steps_per_execution` batches. If `fit` dispatches steps
        asynchronously, a batch callback would make it wait for each step, so the train function reports each call instead.
        The callback never reads its own `model`: on JAX, that would synchronize the model's state.
        """
        backend = backends.current()

        class Driver(self._flavour.callbacks.Callback):  # type: ignore[misc,name-defined]  # Keras ships no types
            def __init__(self) -> None:
                super().__init__()
                self._run, *self._waiting = runs

            def step_ended(self, logs: Any = None) -> None:
                clock = self._run.clock
                clock.step_ended(backend.end_of(logs))
                if self._run.first is not None and clock.steps_done == 1:
                    context.enter(self._run.phase)
                if clock.done:
                    self._run.at_end()
                if clock.done and (self._waiting or not ends_by_itself):
                    model.stop_training = True

            def on_test_begin(self, logs: Any = None) -> None:
                self._validation = Phase.FIRST_VALIDATION
                context.enter(Phase.FIRST_VALIDATION)

            def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
                if batch and self._validation is Phase.FIRST_VALIDATION:
                    self._validation = Phase.VALIDATION
                    context.enter(Phase.VALIDATION)

            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                if self._run.clock.done and self._waiting:
                    model.stop_training = False
                    self._run = self._waiting.pop(0)
                    context.enter(self._run.first or self._run.phase)

        class BatchDriver(Driver):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                self.step_ended(logs)

        class CallDriver(Driver):
            def on_train_begin(self, logs: Any = None) -> None:
                self._step = model.train_function
                model.train_function = self._counted

            def on_train_end(self, logs: Any = None) -> None:
                model.train_function = self._step

            def _counted(self, *arguments: Any) -> Any:
                made = self._step(*arguments)
                self.step_ended(made[0] if isinstance(made, tuple) else made)  # on JAX, it also returns the state
                if self._run.clock.done and self._run is runs[-1] and self._run.is_abandoned:
                    self.on_train_end()
                    raise _Enough
                return made

        return CallDriver() if backend.steps_are_async else BatchDriver()


def _is_left_out(callback: Any) -> bool:
    names = {base.__name__ for base in type(callback).__mro__ if base.__module__.partition(".")[0] in ("keras", "tf_keras")}
    return bool(names & set(_LEFT_OUT))
