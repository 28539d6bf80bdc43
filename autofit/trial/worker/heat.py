"""Train one contestant of a race; loads Keras.

    checkpoint ─> train, with the clock stopped for each snapshot of the weights ─> evaluate the averaged snapshots

The weights are averaged over some snapshots before each point of the curve, because single ones scatter with the learning
rate. Losses are evaluated after the training: within `fit`, that would take turns with its input.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from autofit import backends
from autofit.errors import UsageError
from autofit.records.states import Phase
from autofit.records.trial import CURVE_POINTS, HeatSpec, LossPoint
from autofit.trial.worker.gradient_meter import train
from autofit.trial.worker.job import TrialContext
from autofit.trial.worker.keras_versions import keras_of, steps_per_execution
from autofit.trial.worker.measure import Bench
from autofit.workload.workload import Workload

_FOLDER = "checkpoints"
_COPYING_SHARE = 0.25  # of the training's time that copies of the weights may take
_MOST_BYTES = 2 * 2**30  # of all points' weights in the host's memory
_MOST_STEPS = 20_000  # of an epoch; `fit` is called again if the time is not up
_MOST_AHEAD = 2  # calls of the train function in flight


def run_heat(context: TrialContext, loaded: Workload) -> None:
    """Train from the spec's checkpoint for its seconds; send the loss over time, or keep the state as a checkpoint."""
    heat = context.spec.heat or HeatSpec()
    keras.utils.set_random_seed(heat.seed)
    bench = Bench.of(context, loaded)
    model, execution = bench.model, steps_per_execution(bench.model)
    if keras_of(model).__name__ != "keras":
        raise UsageError("trainings of a tf_keras model cannot be raced; use Keras 3", key="build_model")
    if not (model.built and model.optimizer.built):
        with contextlib.suppress(Exception):  # the first step then builds what is missing, or raises the same error
            model._symbolic_build(data_batch=bench.data.batch())
    scaling = _set_optimizer(model, heat, bench.data.batch_samples)
    train(context, bench.call, model, bench.data, execution)  # compiles the step, and creates all variables
    if heat.start:
        _load(model, context.folder / _FOLDER / heat.start)
    scaling()
    start = _averaged([_values(model)])
    updates = int(model.optimizer.iterations)
    keras.utils.set_random_seed(heat.seed)  # for the order of the data
    recorder = _Recorder(model, context.spec.measure_seconds, heat.snapshots)
    context.enter(Phase.TRAINING)
    while not recorder.is_over:
        before = recorder.calls
        bench.call.fit(model, bench.data.fit_arguments(_MOST_STEPS * execution), recorder.callback(), with_callbacks=False)
        if recorder.calls == before:
            raise UsageError(f"the fit of {type(model).__name__} ended without a step; trainings cannot be raced")
    points = [(0.0, updates, start), *((at, updates + done, values) for at, done, values in recorder.points)]
    if heat.keeps:
        _keep(model, context.folder / _FOLDER / heat.keeps)
        losses: Sequence[LossPoint] = [LossPoint(at, done, None) for at, done, _ in points]
    else:
        context.enter(Phase.VALIDATION)
        losses = [
            LossPoint(at, done, loss) for (at, done, _), loss in zip(points, _losses(bench, heat, points), strict=True)
        ]
    context.send_measurement(losses=tuple(losses))


class _Recorder:
    """Takes snapshots of the weights at equal distances of training time, which does not count the copying."""

    def __init__(self, model: Any, seconds: float, snapshots: int) -> None:
        self._model, self._seconds, self._execution = model, seconds, steps_per_execution(model)
        self._end_of = backends.current().end_of
        self._began: float | None = None
        self._paused = 0.0
        self._ahead = deque[Callable[[], None]]()
        size = sum(value.nbytes for value in _values(model))
        self._point_count = max(2, min(CURVE_POINTS, _MOST_BYTES // max(1, size)))
        self._wanted = snapshots  # for each point; fewer if copies take too long
        self._snapshots = list[list[Any]]()
        self.points = list[tuple[float, int, list[Any]]]()
        self.calls, self.is_over = 0, False

    def callback(self) -> Any:
        """Return a callback that replaces the train function: a batch callback would make `fit` wait for each step."""
        recorder, model = self, self._model

        class Records(keras.callbacks.Callback):  # type: ignore[misc]  # Keras ships no types
            def on_train_begin(self, logs: Any = None) -> None:
                self._step = model.train_function
                model.train_function = self._counted

            def on_train_end(self, logs: Any = None) -> None:
                model.train_function = self._step

            def _counted(self, *arguments: Any) -> Any:
                recorder.begin()
                made = self._step(*arguments)
                recorder.step_ended(made)
                return made

        return Records()

    def begin(self) -> None:
        """Start the clock before the first call."""
        if self._began is None:
            self._began = time.perf_counter()

    def step_ended(self, made: Any) -> None:
        """Count a call of the train function, and take a snapshot if it is time."""
        self.calls += 1
        logs, state = made if isinstance(made, tuple) else (made, None)
        over = self._end_of(logs)
        if over is not None:
            self._ahead.append(over)
            if len(self._ahead) > _MOST_AHEAD:
                self._ahead.popleft()()
        point = self._seconds / self._point_count
        due = (len(self.points) + (len(self._snapshots) + 1) / self._wanted) * point
        if self.is_over or self._elapsed() < due:
            return
        while self._ahead:
            self._ahead.popleft()()
        at, stopped = self._elapsed(), time.perf_counter()
        self._snapshots.append(_values(self._model, state))
        if at >= (len(self.points) + 1) * point or len(self._snapshots) == self._wanted:
            self.points.append((at, self.calls * self._execution, _averaged(self._snapshots)))
            self._snapshots = []
            self.is_over = len(self.points) >= self._point_count or at >= self._seconds
            self._model.stop_training = self._model.stop_training or self.is_over
        self._paused += time.perf_counter() - stopped
        if self._paused > _COPYING_SHARE * (at + point):
            self._wanted = max(1, self._wanted // 2)

    def _elapsed(self) -> float:
        return time.perf_counter() - (self._began or 0.0) - self._paused


def _variables(model: Any) -> list[Any]:
    return [*model.trainable_variables, *model.non_trainable_variables]


def _values(model: Any, state: Any = None) -> list[Any]:
    """Return copies of all weights; on JAX, while `fit` runs, they are in the state that the step returns."""
    held = _variables(model) if state is None else [*state[0], *state[1]]
    return [np.array(keras.ops.convert_to_numpy(each)) for each in held]


def _averaged(snapshots: Sequence[list[Any]]) -> list[Any]:
    """Return the mean of the weights of all snapshots; of integers, such as random states, the last."""
    return [
        np.mean(each, axis=0, dtype="float64").astype("float32") if np.issubdtype(each[-1].dtype, np.floating) else each[-1]
        for each in zip(*snapshots, strict=True)
    ]


def _assign(variables: Sequence[Any], values: Sequence[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _keep(model: Any, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        np.savez(file, *_values(model), *(np.array(keras.ops.convert_to_numpy(v)) for v in model.optimizer.variables))


def _load(model: Any, path: Path) -> None:
    with np.load(path) as kept:
        values = [kept[name] for name in kept.files]
    variables = [*_variables(model), *model.optimizer.variables]
    if [value.shape for value in values] != [tuple(variable.shape) for variable in variables]:
        raise UsageError("the weights differ between batch sizes, so trainings cannot be raced")
    _assign(variables, values)


def _set_optimizer(model: Any, heat: HeatSpec, batch_samples: int) -> Callable[[], None]:
    """Set what the compiled step holds; return a function that multiplies a learning rate that is a variable."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if heat.beta_2 is not None:
        optimizer.beta_2 = heat.beta_2
    schedule, larger = optimizer._learning_rate, batch_samples / heat.baseline
    if not isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):

        def multiply() -> None:
            optimizer.learning_rate = float(optimizer.learning_rate) * heat.learning_rate_factor

        return multiply

    class Scaled(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]  # Keras ships no types
        def __call__(self, step: Any) -> Any:
            later = keras.ops.cast(step, "float32") - heat.updates
            return schedule(heat.updates + later * larger) * heat.learning_rate_factor

    optimizer.learning_rate = Scaled()
    return lambda: None


def _losses(bench: Bench, heat: HeatSpec, points: Sequence[tuple[float, int, list[Any]]]) -> list[float | None]:
    """Return the loss of held-out samples at the weights of each point; None where it is not finite, or without any."""
    held_out, model = bench.held_out, bench.model
    if held_out is None:
        return [None] * len(points)
    steps, losses = max(1, -(-heat.held_out_samples // held_out.batch_samples)), list[float | None]()
    for _, _, values in points:
        _assign(_variables(model), values)
        given = held_out.validation_arguments(steps)
        data = given["validation_data"]
        parts = dict(zip(("x", "y", "sample_weight"), data, strict=False)) if isinstance(data, tuple) else {"x": data}
        logs = model.evaluate(
            **parts,
            batch_size=given.get("validation_batch_size"),
            steps=given.get("validation_steps"),
            verbose=0,
            return_dict=True,
        )
        if "loss" not in logs:
            raise UsageError(f"evaluate of {type(model).__name__} returns no loss, so trainings cannot be raced")
        loss = float(logs["loss"])
        losses.append(loss if np.isfinite(loss) else None)
    return losses
