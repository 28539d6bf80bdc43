"""Read gradients at frozen weights; loads Keras.

Every train step, the user's own included, hands its gradients to `model.optimizer`. A meter takes the optimizer's place:
it leaves the weights alone, adds up the gradients, and adds up their squares. So `fit` runs unchanged, compiled, with the
user's data, loss, weights of samples and loss scaling.

    train to step 100 ─> meter: groups of microbatches ─> train to step 400 ─> meter ─> …
"""

from __future__ import annotations

import contextlib
import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from autofit.errors import UsageError
from autofit.records import gradient_statistics
from autofit.records.noise import GradientProducts, Gradients, Metric
from autofit.records.states import Phase
from autofit.trial.worker import batch_shapes
from autofit.trial.worker.build import build_model, open_training
from autofit.trial.worker.fit_call import FitCall
from autofit.trial.worker.job import TrialContext, first_line
from autofit.trial.worker.keras_versions import keras_of, steps_per_execution
from autofit.workload.inputs.arrays import Arrays
from autofit.workload.inputs.fit_input import FitInput
from autofit.workload.inputs.indexed import IndexedInput
from autofit.workload.workload import Workload

_FIRST_GROUP_BATCHES, _MOST_GROUPS = 4, 32
_FEWEST_BATCHES, _MOST_BATCHES = 64, 2048  # microbatches; the first is doubled until the interval is narrow
_NARROW = 0.15  # standard deviation of the noise scale's logarithm that needs no more microbatches
_METER_SHARE = 0.5  # of the seconds of a stage, at most, for the meter
_MOST_SKIPPED = 16  # groups that a loss scale may take to become small enough
_OTHER_OPTIMIZER = "the train step does not use the optimizer given to compile once a batch, or it uses several"
_NORMALIZED = "batch normalization makes gradients depend on the batch size"
_INTERVAL_DEVIATIONS = 2.0  # from the middle of an interval to its end
_SKETCH_NUMBERS = 2**18  # longer gradients are summed to this many numbers: products err by 0.2 % of the norms
# Adam's family (Keras 3.15): the running squares of each optimizer, and what it divides gradients by
_PRECONDITIONERS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    **dict.fromkeys(("Adam", "Nadam"), ("_velocities", lambda v, epsilon: np.sqrt(v) + epsilon)),
    "Adamax": ("_u", lambda v, epsilon: v + epsilon),
    "RMSprop": ("_velocities", lambda v, epsilon: np.sqrt(v + epsilon)),
    "Adagrad": ("_accumulators", lambda v, epsilon: np.sqrt(v + epsilon)),
}
_Numbers = npt.NDArray[np.float64]


def read_gradients(context: TrialContext, loaded: Workload) -> None:
    """Train to each of the spec's steps and read the gradients there, as long as the seconds suffice."""
    spec, began = context.spec, time.monotonic()
    model, data = build_model(context, loaded), open_training(context, loaded)
    if keras_of(model).__name__ != "keras":
        raise UsageError("the noise scale of a tf_keras model cannot be measured; use Keras 3", key="build_model")
    if getattr(model, "steps_per_execution", 1) > 1:
        model.steps_per_execution = 1
    if not (model.built and model.optimizer.built):
        with contextlib.suppress(Exception):  # the first step then builds what is missing, or raises the same error
            model._symbolic_build(data_batch=data.batch())
    if spec.weights:
        _load(model, spec.weights)
    call, done, gradients = FitCall(context, loaded, keras, data.sample_count()), 0, list[Gradients]()
    read_from = data if spec.microbatch_samples is None else open_training(context.sized(spec.microbatch_samples), loaded)
    read_from.spread()
    trained_seconds = 0.0
    for step in spec.gradient_steps:
        left = spec.measure_seconds - (time.monotonic() - began)
        if gradients and trained_seconds * (step - done) / max(1, done) > (1 - _METER_SHARE) * left:
            break
        if step > done:
            stage = time.monotonic()
            train(context, call, model, data, step - done)
            trained_seconds, done = trained_seconds + time.monotonic() - stage, step
        left = max(0.0, spec.measure_seconds - (time.monotonic() - began))
        compares = _may_disagree(model, call, read_from)
        seconds = _METER_SHARE * left / (2 if compares else 1)
        read = replace(_read(context, call, model, read_from, seconds), at_step=None if spec.weights else step)
        gradients.append(read)
        context.send_measurement(gradients=tuple(gradients))
        if compares and not read.problem:
            halved = open_training(context.sized(read_from.batch_samples // 2), loaded)
            halved.spread()
            if halved.batch_samples < read_from.batch_samples:  # the data may ignore the size
                gradients[-1] = _compared(read, _read(context, call, model, halved, seconds))
                context.send_measurement(gradients=tuple(gradients))
        if gradients[-1].problem:
            break


def _may_disagree(model: Any, call: FitCall, data: FitInput) -> bool:
    """Return whether batches of half the size may show that samples of a batch are not independent."""
    is_shuffled = isinstance(data, Arrays) and call.options.get("shuffle", True) is True
    is_fixed = any(shape and shape[0] is not None for shape in batch_shapes.input_shapes(model) or ())
    return (bool(_normalized(model)) or not is_shuffled) and data.batch_samples > 1 and not is_fixed


def _normalized(model: Any) -> int:
    return sum(isinstance(layer, keras.layers.BatchNormalization) and layer.trainable for layer in model._flatten_layers())


def _load(model: Any, path: str) -> None:
    try:
        model.load_weights(path)
    except Exception as error:  # whatever Keras and h5py raise for a file that does not fit
        problem = f"{path} cannot be loaded into the model that build_model returns: {first_line(error)}"
        raise UsageError(problem, key="weights") from None


def train(context: TrialContext, call: FitCall, model: Any, data: FitInput, steps: int) -> None:
    """Train for some steps with the user's optimizer and callbacks."""
    context.enter(Phase.TRAINING)
    left, execution = steps, steps_per_execution(model)

    class Ends(keras.callbacks.Callback):  # type: ignore[misc]  # Keras ships no types
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            nonlocal left
            left -= execution
            if left <= 0 and not data.ends_by_itself:  # an interrupted `fit` leaves workers behind
                self.model.stop_training = True

    while left > 0:
        before = left
        call.fit(model, data.fit_arguments(left), Ends())
        if left == before:
            raise UsageError(f"the fit of {type(model).__name__} ended without a step; learning cannot be measured")
    gc.collect()


def _read(context: TrialContext, call: FitCall, model: Any, data: FitInput, seconds: float) -> Gradients:
    """Run microbatches with a meter in the optimizer's place until the interval is narrow or the `seconds` have passed."""
    context.enter(Phase.GRADIENTS)
    until = time.monotonic() + seconds
    own, own_function = model.optimizer, model.train_function
    inner = getattr(own, "inner_optimizer", own)
    known = inner._trainable_variables if inner.built else model.trainable_variables
    meter = _meter(_scales(inner))
    meter.build(known)
    groups, size, count = _Groups(is_scaled=inner is not own), data.batch_samples, data.sample_count()
    # dropout and augmentation add noise that an epoch does not use up
    is_exact = not any(getattr(layer, "seed_generator", None) for layer in model._flatten_layers())
    samples = count if isinstance(data, Arrays | IndexedInput) and is_exact else None
    most = _MOST_BATCHES if count is None else min(_MOST_BATCHES, count // size)
    wanted, seen, problem = min(most, _FEWEST_BATCHES), 0, ""
    before = _sums_of(model)
    model.optimizer = meter if inner is own else _with_loss_scale(meter, own)
    model.train_function = None

    class Reads(keras.callbacks.Callback):  # type: ignore[misc]  # Keras ships no types
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            nonlocal seen, wanted, problem
            seen += 1
            if seen % groups.batches:
                return
            model = self.model  # on JAX, this brings the state of the step into the variables
            problem = groups.take(meter)
            has_enough = len(groups.norms) >= gradient_statistics.LEAST_GROUPS
            if problem or seen + groups.batches > most or (has_enough and time.monotonic() >= until):
                model.stop_training = True
            elif seen >= wanted and has_enough:
                wanted, model.stop_training = 2 * wanted, _is_narrow(replace(groups.gradients(size), samples=samples))

    try:
        call.fit(model, data.fit_arguments(most), Reads(), with_callbacks=False)
    finally:
        model.optimizer, model.train_function = own, own_function
    gc.collect()
    if not problem and (_sums_of(model) != before or (seen and not groups.norms and not int(meter.iterations))):
        problem = _OTHER_OPTIMIZER
    if not problem and len(groups.norms) < gradient_statistics.LEAST_GROUPS:
        fewest = groups.batches * gradient_statistics.LEAST_GROUPS
        problem = f"an epoch has {seen} batches of {size} samples; at least {fewest} are needed"
    read = replace(groups.gradients(size), samples=samples)
    return replace(read, problem=problem, normalized=_normalized(model), optimizer=type(inner).__name__)


def _sums_of(model: Any) -> list[float]:
    """Return a sum for each trainable variable, which shows whether it has changed."""
    return [float(keras.ops.sum(variable)) for variable in model.trainable_variables]


def _compared(read: Gradients, halved: Gradients) -> Gradients:
    """Return the gradients, with a problem if batches of half the size give another noise scale."""
    if halved.problem or not gradient_statistics.disagree(read, halved):
        return read
    sizes = f"batches of {read.batch_size} and {halved.batch_size} samples give noise scales that disagree"
    problem = f"{sizes}: {_NORMALIZED if read.normalized else gradient_statistics.ORDERED}"
    return replace(read, problem=problem)


def _scales(optimizer: Any) -> list[Any] | None:
    """Return by what the optimizer multiplies each gradient, but for a constant; None if that is the same for all.

    A weight whose gradient was 0 in every update so far is left out: its first update would be of full size.
    """
    if not optimizer.built or not int(optimizer.iterations):
        return None
    kinds = [kind for kind in type(optimizer).__mro__ if kind.__name__ in _PRECONDITIONERS]
    if not kinds:
        return None
    name, divisor = _PRECONDITIONERS[kinds[0].__name__]
    slots = getattr(optimizer, "_velocity_hats" if getattr(optimizer, "amsgrad", False) else name, None)
    if not slots:  # another version of Keras
        return None
    arrays = [keras.ops.convert_to_numpy(slot).astype(np.float32) for slot in slots]
    return [np.where(array > 0, 1 / divisor(array, np.float32(optimizer.epsilon)), np.float32(0)) for array in arrays]


def _with_loss_scale(meter: Any, own: Any) -> Any:
    """Return a meter that is given gradients of a scaled loss, as the user's optimizer is."""
    scale = float(own.dynamic_scale) if own.built else own.initial_scale
    return keras.optimizers.LossScaleOptimizer(meter, initial_scale=scale)


def _is_narrow(gradients: Gradients) -> bool:
    """Return whether the noise scale is known well enough in each metric."""
    scales = [gradient_statistics.scale_of(gradients, metric) for metric in gradients.by_metric]
    return all(s.high is not None and s.high <= s.low * math.exp(2 * _INTERVAL_DEVIATIONS * _NARROW) for s in scales)


class _Groups:
    """The gradients of groups of microbatches: their sums, of which long ones are shortened, and their squares.

    A long gradient is summed to `_SKETCH_NUMBERS` with random signs, which are the same in each group: scalar products keep
    their expected value (Charikar, Chen and Farach-Colton, Finding frequent items in data streams, 2002). Norms are exact.
    """

    def __init__(self, *, is_scaled: bool) -> None:
        self.batches, self._is_scaled, self._skipped = _FIRST_GROUP_BATCHES, is_scaled, 0
        self.norms = list[_Numbers]()  # of each group's sum, one number for each metric
        self._squares, self._sketches = list[_Numbers](), list[list[_Numbers]]()
        self._taken = 0

    def take(self, meter: Any) -> str:
        """Take what the meter has added up for a group, and set it to zero; return what is wrong with it, or ""."""
        counted = int(meter.iterations) - self._taken
        self._taken += counted
        if counted < self.batches and self._is_scaled and self._skipped < _MOST_SKIPPED:
            self._skipped += 1  # the scaled loss overflowed, and the next scale is smaller: leave out the group
            self._reset(meter)
            return ""
        if counted < self.batches and self._is_scaled:
            return gradient_statistics.NOT_FINITE
        if counted != self.batches:
            return _OTHER_OPTIMIZER
        sums = [keras.ops.convert_to_numpy(each).astype(np.float64) for each in meter.sums]
        squares = np.array([[float(each) for each in slots] for slots in meter.squares]).sum(1)
        self._reset(meter)
        by_metric = [sums, *([[a * s for a, s in zip(sums, meter.scales, strict=True)]] if meter.scales else [])]
        norms = np.array([sum(float(np.square(array).sum()) for array in arrays) for arrays in by_metric])
        if not (np.isfinite(squares).all() and np.isfinite(norms).all()):
            return gradient_statistics.NOT_FINITE
        self._squares.append(squares)
        self.norms.append(norms)
        self._sketches.append([_shortened(arrays) for arrays in by_metric])
        if len(self.norms) == _MOST_GROUPS:
            self._join_pairs()
        return ""

    @staticmethod
    def _reset(meter: Any) -> None:
        for variable in (*meter.sums, *(each for slots in meter.squares for each in slots)):
            variable.assign(np.zeros(variable.shape, variable.dtype))

    def gradients(self, batch_samples: int) -> Gradients:
        """Return what was taken so far."""
        by_metric = {}
        for index, metric in enumerate(tuple(Metric)[: len(self.norms[0]) if self.norms else 0]):
            products = self._products(index)
            squares = tuple(float(each[index]) for each in self._squares)
            by_metric[metric] = GradientProducts(squares, tuple(tuple(map(float, row)) for row in products))
        return Gradients(batch_samples, self.batches, by_metric)

    def _products(self, index: int) -> _Numbers:
        rows = np.array([sketches[index] for sketches in self._sketches])
        products: _Numbers = rows @ rows.T
        np.fill_diagonal(products, [norms[index] for norms in self.norms])
        return products

    def _join_pairs(self) -> None:
        joined = [self._products(index) for index in range(len(self.norms[0]))]
        pairs = list(zip(range(0, _MOST_GROUPS, 2), range(1, _MOST_GROUPS, 2), strict=True))
        self.norms = [np.array([each[i, i] + 2 * each[i, j] + each[j, j] for each in joined]) for i, j in pairs]
        self._squares = [self._squares[i] + self._squares[j] for i, j in pairs]
        self._sketches = [
            [one + other for one, other in zip(self._sketches[i], self._sketches[j], strict=True)] for i, j in pairs
        ]
        self.batches *= 2


def _shortened(arrays: Sequence[_Numbers]) -> _Numbers:
    """Return a gradient as one array of at most `_SKETCH_NUMBERS` numbers."""
    if sum(array.size for array in arrays) <= _SKETCH_NUMBERS:
        return np.concatenate([array.ravel() for array in arrays])
    total = np.zeros(_SKETCH_NUMBERS)
    for index, array in enumerate(arrays):
        signs = np.random.default_rng(index).integers(0, 2, array.size, np.int8) * 2 - 1
        signed = signs * array.ravel()
        padded = np.concatenate([signed, np.zeros(-len(signed) % _SKETCH_NUMBERS)])
        total += padded.reshape(-1, _SKETCH_NUMBERS).sum(0)
    return total


def _dense(gradient: Any) -> Any:
    """Return a gradient in float32; TensorFlow's of an embedding has a row for each use of an entry, which are added up."""
    if hasattr(gradient, "dense_shape"):
        import tensorflow as tf  # not installed for other backends

        gradient = tf.convert_to_tensor(gradient)
    return keras.ops.cast(keras.ops.convert_to_tensor(gradient), "float32")


def _meter(scales: Sequence[Any] | None) -> Any:
    class Meter(keras.optimizers.Optimizer):  # type: ignore[misc]  # Keras ships no types
        """Adds up gradients and their squares, and leaves the variables alone."""

        def __init__(self) -> None:
            super().__init__(learning_rate=0.0, name="meter")
            self.scales = list(scales or [])

        def build(self, variables: Any) -> None:
            if self.built:
                return
            super().build(variables)
            self.sums = [self._float(v.shape, f"sum_{i}") for i, v in enumerate(variables)]
            metrics = 2 if self.scales else 1
            self.squares = [
                [self._float((), f"squares_{metric}_{i}") for i, _ in enumerate(variables)] for metric in range(metrics)
            ]
            self._scaling = [self._float(scale.shape, f"scale_{i}") for i, scale in enumerate(self.scales)]
            for variable, scale in zip(self._scaling, self.scales, strict=True):
                variable.assign(scale)

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            index = self._get_variable_index(variable)
            dense = _dense(gradient)
            self.assign_add(self.sums[index], dense)
            scaled = [dense, *([dense * self._scaling[index]] if self._scaling else [])]
            for slots, each in zip(self.squares, scaled, strict=True):
                self.assign_add(slots[index], keras.ops.sum(keras.ops.square(each)))

        def _float(self, shape: Any, name: str) -> Any:
            return self.add_variable(shape, dtype="float32", name=name)

    return Meter()
