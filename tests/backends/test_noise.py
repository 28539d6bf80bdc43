"""The gradient noise scale on each backend: exact values, and workloads for which there is none."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from autofit.records.noise import Metric, NoiseScale
from autofit.records.trial import FitConfig
from autofit.tuning.noise import of_measurement
from tests.installed import needs

WIDTH, SAMPLES, NOISE = 20, 100_000, 1.0
SPREAD = 1 / np.arange(1, WIDTH + 1.0)  # variances of the inputs
TRUTH = np.random.default_rng(1).normal(size=WIDTH)
MEAN = SPREAD * TRUTH  # the gradient at weights of 0, but for a factor
VARIANCES = ((SPREAD * TRUTH**2).sum() + NOISE**2) * SPREAD + MEAN**2  # of the gradients of single samples
EXACT = VARIANCES.sum() / (MEAN**2).sum()


@pytest.fixture(params=["tensorflow", "jax", "torch"], scope="session")
def backend(request):
    needs(request.param)
    return request.param


def rows(kind=""):
    """Inputs and targets of a linear regression with noise, in random order."""
    draw = np.random.default_rng(5)
    x = (draw.normal(size=(SAMPLES, WIDTH)) * np.sqrt(SPREAD)).astype("float32")
    y = (x @ TRUTH + NOISE * draw.normal(size=SAMPLES)).astype("float32")[:, None]
    if kind in ("words", "counts"):  # 12 words each, most of them the first ones
        words = np.minimum(draw.geometric(0.2, (SAMPLES, 12)), WIDTH) - 1
        counts = (words[:, :, None] == np.arange(WIDTH)).sum(1).astype("float32")
        y = (counts @ TRUTH + NOISE * draw.normal(size=SAMPLES)).astype("float32")[:, None]
        return words if kind == "words" else counts, y
    if kind == "alike":
        return np.ones_like(x), np.ones_like(y)
    if kind == "doubled":
        return np.concatenate([x, x]), np.concatenate([y, y])
    if kind == "noise":
        return x, draw.normal(size=y.shape).astype("float32")
    return x, np.full_like(y, math.nan) if kind == "nan" else y


def regression(optimizer="sgd", kind="", scale=1.0):
    """A model of a linear regression whose weights are 0, and stay there."""
    import keras

    class Own(keras.Model):
        """Has another optimizer than that given to `compile`."""

        def train_step(self, *arguments):
            logs = {"loss": keras.ops.zeros(())}
            return (logs, arguments[0]) if keras.backend.backend() == "jax" else logs

    keras.utils.set_random_seed(3)  # the order of the data follows from it: one in twenty would be a bad one otherwise
    options = {"learning_rate": 1e-12}
    inputs = keras.Input((WIDTH,))
    outputs = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")(inputs)
    if kind == "words":
        inputs = keras.Input((12,), dtype="int32")
        outputs = keras.ops.sum(keras.layers.Embedding(WIDTH, 1, "zeros")(inputs), axis=1)
    if kind == "normalized":
        hidden = keras.layers.Dense(4)(inputs)
        outputs = keras.layers.Dense(1)(keras.layers.BatchNormalization()(hidden))
    made = (Own if kind == "unused" else keras.Model)(inputs, outputs)
    chosen = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}[optimizer](**options)

    def loss(y, predicted):
        return scale * keras.ops.mean(keras.ops.square(y - predicted))

    made.compile(chosen, loss)
    return made


@pytest.fixture
def measured(launched, play):
    """The noise scale of a regression, and what it was read from."""

    def measured(batch=32, steps=(0,), rows_kind="", **model_kwargs):
        launcher = launched(build_model=regression, data=rows, model_kwargs=model_kwargs, data_kwargs={"kind": rows_kind})
        trial = play(launcher, FitConfig(batch), role="gradients", gradient_steps=steps, measure_seconds=20.0)
        return of_measurement(trial)

    return measured


def is_near(scale, exact):
    """Whether the interval, twice as wide, has the exact value: one in twenty would be outside otherwise."""
    return scale.low**2 / scale.value <= exact <= scale.high**2 / scale.value


@pytest.mark.parametrize("batch", [8, 64])
def test_it_is_that_of_a_regression_whatever_the_batch_and_the_scale_of_the_loss(measured, batch):
    for scale in (1.0, 1000.0):
        read = measured(batch, scale=scale)
        assert is_near(read, EXACT), read
        assert read.high < 2 * read.low
        assert (read.metric, read.optimizer, read.at_step) == (Metric.EUCLIDEAN, "SGD", 0)


def test_an_embedding_has_that_of_the_same_model_without_one(measured):
    words, counts = measured(kind="words", rows_kind="words"), measured(rows_kind="counts")
    assert words.value == pytest.approx(counts.value, rel=0.01)


def test_it_is_measured_after_updates_in_the_metric_of_adam(measured):
    read = measured(64, steps=(50, 100), optimizer="adam")
    running = MEAN**2 + VARIANCES / 64  # what Adam divides by the root of, but for a factor
    assert read.value == pytest.approx((VARIANCES / running).sum() / (MEAN**2 / running).sum(), rel=0.4)
    assert (read.metric, read.optimizer, read.at_step) == (Metric.PRECONDITIONED, "Adam", 100)
    assert [each.at_step for each in read.trend] == [50]
    assert read.other_value == pytest.approx(EXACT, rel=0.4)


def test_copies_of_the_data_change_nothing_and_samples_that_are_alike_have_no_noise(measured):
    assert is_near(measured(rows_kind="doubled"), EXACT)
    assert measured(rows_kind="alike").value == pytest.approx(0, abs=1e-3)


def test_a_gradient_that_is_all_noise_has_a_scale_of_at_least_something(measured):
    read = measured(rows_kind="noise")
    assert (read.value, read.high, read.reason) == (None, None, "")
    assert read.low > 1000


def test_batch_normalization_whose_gradients_depend_on_the_batch_has_no_scale(measured):
    assert "batch normalization makes gradients depend on the batch size" in measured(2, kind="normalized").reason


def test_what_cannot_be_measured_is_a_sentence_and_no_figure(measured):
    for arguments, reason in (
        ({"rows_kind": "nan"}, "the loss is NaN"),
        ({"kind": "unused"}, "does not use the optimizer given to compile"),
        ({"batch": SAMPLES // 4}, "at least 32 are needed"),
    ):
        read = measured(**arguments)
        assert reason in read.reason
        assert (read.value, read.low, read.high) == (None, None, None)


def build_words(policy=None):
    """A classifier of words: an embedding, whose gradients are sparse on TensorFlow, and half precision if asked for."""
    import keras

    keras.utils.set_random_seed(0)
    if policy:
        keras.config.set_dtype_policy(policy)
    inputs = keras.Input((6,), dtype="int32")
    hidden = keras.layers.Flatten()(keras.layers.Embedding(50, 4)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(3, dtype="float32")(hidden))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def words():
    draw = np.random.default_rng(0)
    texts = draw.integers(0, 50, (4096, 6))
    return texts, texts[:, 0] % 3


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_sparse_gradients_and_a_scaled_loss_count_as_they_are(launched, play, policy):
    scales = []
    for given in ("float32", policy):
        launcher = launched(build_model=build_words, data=words, model_kwargs={"policy": given})
        trial = play(launcher, FitConfig(32), role="gradients", gradient_steps=(0,), measure_seconds=20.0)
        scales.append(of_measurement(trial))
    plain, read = scales
    assert read.low <= plain.high, (plain, read)
    assert plain.low <= read.high, (plain, read)


class Sorted:
    """Batches of the words, in the order of their classes."""

    def __new__(cls, batch_size):
        import keras

        texts, classes = words()
        order = np.argsort(classes, kind="stable")

        class Batches(keras.utils.PyDataset):
            def __len__(self):
                return len(order) // batch_size

            def __getitem__(self, index):
                chosen = order[index * batch_size : (index + 1) * batch_size]
                return texts[chosen], classes[chosen]

        return Batches()


def test_batches_in_the_order_of_their_classes_are_no_independent_draws(launched, play):
    launcher = launched(build_model=build_words, data=Sorted)
    trial = play(launcher, FitConfig(32), role="gradients", gradient_steps=(0,), measure_seconds=5.0)
    read = of_measurement(trial)
    assert "shuffle the samples" in read.reason
    assert read.low is None


GOODPUT = """
import json, sys
import autofit
from tests.backends.test_noise import regression, rows

if __name__ == "__main__":
    space = {"batch_size": [32, 128, 512, 2048, 8192]}
    bounds = {"space": space, "baseline": {"batch_size": 32}, "max_trials": 5, "storage": sys.argv[1]}
    result = autofit.tune(regression, rows(), objective="goodput", **bounds)
    values = {trial.config.batch_size: trial.value(result.objective) for trial in result.trials}
    scale = result.noise_scale
    print(json.dumps([[scale.low, scale.value, scale.high], values, result.config.batch_size, str(result)]))
"""


@pytest.mark.release
@pytest.mark.slow
def test_a_tune_for_goodput_chooses_by_the_measured_scale(tmp_path):
    needs("tensorflow")
    script = tmp_path / "program.py"
    script.write_text(GOODPUT)
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow", "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, script, tmp_path / "trials.db"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, timeout=280)
    (low, value, high), values, chosen, summary = json.loads(done.stdout.splitlines()[-1])
    assert is_near(NoiseScale(value, low, high), EXACT)
    assert chosen == 32 or values[str(chosen)] > 0.7 * max(values.values())
    assert chosen < 8192  # the most samples a second
    assert "to the same loss" in summary or "no gain shown" in summary
