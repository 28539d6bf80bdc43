"""What a program does differently on batches of another size is found in its model."""

import keras
import numpy as np
import pytest
from keras import ops
from keras.optimizers import SGD, Adam, LossScaleOptimizer
from keras.optimizers.schedules import (
    CosineDecay,
    ExponentialDecay,
    LearningRateSchedule,
    PiecewiseConstantDecay,
)

from autofit.trial.worker.batch_dependence import dependences_of

BATCH = (np.ones((8, 3), "float32"), np.linspace(0, 1, 8, dtype="float32")[:, None])


class WarmUp(LearningRateSchedule):
    def __init__(self):
        self.d_model = 512
        self.warmup_steps = 4000
        self.warmup_rate = 7.0

    def __call__(self, step):
        return ops.minimum(1e-3, step / self.warmup_steps)


def half(step=0):
    return 0.5


def own_mean(y, predicted):
    return ops.mean(ops.square(y - predicted), axis=-1)


def in_batch(y, predicted):
    return ops.mean(ops.square(predicted - ops.mean(predicted, axis=0)), axis=-1)


class OwnSteps(keras.Sequential):
    def compute_loss(self, *arguments, **options):
        return super().compute_loss(*arguments, **options)


class Penalised(keras.layers.Dense):
    def call(self, inputs):
        self.add_loss(ops.sum(inputs))
        return super().call(inputs)


def found(*layers, optimizer="sgd", loss="mse", of=keras.Sequential):
    model = of([keras.Input((3,)), *layers, keras.layers.Dense(1)])
    model.compile(optimizer, loss)
    return [
        (each.kind, each.name, *each.arguments) for each in dependences_of(model, BATCH)
    ]


@pytest.mark.parametrize(
    ("optimizer", "dependence"),
    [
        (
            SGD(CosineDecay(0.0, 90, warmup_target=3, warmup_steps=9)),
            "decay_steps warmup_steps",
        ),
        (Adam(CosineDecay(1e-3, 90)), "decay_steps"),
        (LossScaleOptimizer(SGD(ExponentialDecay(0.1, 90, 0.9))), "decay_steps"),
        (SGD(PiecewiseConstantDecay([10, 20], [1.0, 2.0, 3.0])), "boundaries"),
        (Adam(WarmUp()), "warmup_steps"),
        (SGD(half), ""),
        (SGD(use_ema=True, ema_overwrite_frequency=50), "ema_overwrite_frequency"),
    ],
)
def test_what_counts_train_steps_is_found_with_its_numbers(optimizer, dependence):
    ((kind, name, *arguments),) = found(optimizer=optimizer)
    own = getattr(optimizer, "inner_optimizer", optimizer)
    rate = getattr(own._learning_rate, "__name__", type(own._learning_rate).__name__)
    assert (kind, arguments) == ("schedule", dependence.split())
    assert name == ("SGD" if own.use_ema else rate)


@pytest.mark.parametrize(
    ("loss", "dependence"),
    [
        ("mse", []),
        (keras.losses.Huber(), []),
        (own_mean, []),
        (keras.losses.MeanSquaredError(reduction="sum"), [("sum", "MeanSquaredError")]),
        (keras.losses.Dice(), [("loss", "Dice")]),
        (in_batch, [("loss", "in_batch")]),
    ],
)
def test_a_loss_is_listed_if_it_is_not_the_mean_over_its_samples(loss, dependence):
    assert found(loss=loss) == dependence


@pytest.mark.parametrize("own", ["vae", 3.0, {"kl": 0.5}])
def test_an_attribute_of_the_users_own_that_is_called_loss_is_none(own):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd")
    model.loss = own
    assert list(dependences_of(model, BATCH)) == []


def test_normalization_and_methods_of_the_users_own_are_found_and_nothing_else():
    frozen = keras.layers.BatchNormalization(trainable=False)
    assert (
        found(frozen, keras.layers.LayerNormalization(), keras.layers.Dropout(0.5))
        == []
    )
    assert found(keras.Sequential([keras.layers.BatchNormalization()])) == [
        ("normalization", "BatchNormalization")
    ]
    assert found(Penalised(4)) == [("method", "Penalised.add_loss")]
    assert found(of=OwnSteps) == [("method", "OwnSteps.compute_loss")]
