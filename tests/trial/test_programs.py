"""What trains in plain `fit` is tried as it is.

That is every form of data, train steps of the user's own, and arguments of `fit`.
"""

import copy
import functools
import pathlib
import time

import keras
import numpy as np
import pytest
from keras.src.legacy.preprocessing.image import ImageDataGenerator

from autofit.errors import UsageError
from autofit.records.knobs import FitConfig
from autofit.records.states import Outcome, Role
from autofit.workload.fingerprint import identify
from autofit.workload.workload import Workload, load
from tests.trial.forms import (
    BATCH,
    FIXED,
    FORMS,
    OPTIONS,
    SAMPLES,
    WIDTH,
    OfX,
    build_witness,
    plain_fit,
    tf,
    x_of,
    y_of,
)


@pytest.mark.filterwarnings(
    "ignore"
)  # of a plain `fit`, which says what it does not shuffle
@pytest.mark.parametrize("form", FORMS)
def test_a_train_step_gets_what_plain_fit_hands_it_in_every_phase(
    form, turn, play, tmp_path
):
    options = OPTIONS.get(form, {})
    splits = "validation_split" in options
    paths = {name: tmp_path / name for name in (*Role, "plain")}
    parts = {"validation": None if splits else FORMS[form], "fit_kwargs": options}
    ended = {}
    plain_fit(form, paths["plain"], options)
    for role in Role:
        launcher = turn(
            build_witness, FORMS[form], model_kwargs={"path": str(paths[role])}, **parts
        )
        ended[role] = play(
            launcher,
            FitConfig(BATCH),
            role=role,
            batch_sizes=(4,),
            measure_seconds=0.05,
        )
    assert ended["measure"].outcome is ended["confirm"].outcome is Outcome.OK, ended
    assert not splits or ended["describe"].sample_count == SAMPLES * 3 // 4
    found = {name: {*path.read_text().splitlines()} for name, path in paths.items()}
    assert found["measure"] == found["confirm"] == found["plain"]
    described, plain = (
        {line.replace(FIXED, "") for line in found[role]}
        for role in ("describe", "plain")
    )
    assert described == plain  # the step is traced for a size of its own


def test_a_split_of_what_is_no_array_is_refused(turn, play):
    launcher = turn(
        build_dense, FORMS["tf.data of dicts"], fit_kwargs={"validation_split": 0.2}
    )
    with pytest.raises(UsageError) as caught:
        play(launcher, FitConfig(BATCH), role="describe")
    assert caught.value.key == "fit_kwargs.validation_split"


class Diary(keras.callbacks.Callback):
    """A callback that writes down what it is called for."""

    def __init__(self, path):
        super().__init__()
        self.path = pathlib.Path(path)

    def on_train_batch_end(self, batch, logs=None):
        with self.path.open("a") as file:
            file.write("batch\n")


def make_callbacks(diary, folder):
    return [Diary(diary), keras.callbacks.ModelCheckpoint(f"{folder}/model.keras")]


def build_dense(size=None):
    """A model; its train step takes batches of one size if that is given, or "small" ones."""

    class OneSize(keras.Sequential):
        def train_step(self, data):
            return super().train_step(
                keras.tree.map_structure(
                    lambda leaf: keras.ops.reshape(leaf, (size, -1)), data
                )
            )

    class SmallSizes(keras.Sequential):
        def train_step(self, data):
            assert data[0].shape[0] <= 32  # fewer than in a trace for any size
            return super().train_step(data)

    kind = SmallSizes if size == "small" else OneSize if size else keras.Sequential
    model = kind([keras.Input((WIDTH,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


@pytest.mark.parametrize("is_made", [True, False])
def test_callbacks_that_a_function_makes_run_in_trials_and_those_of_a_list_do_not(
    turn, play, tmp_path, is_made
):
    diary = tmp_path / "diary"
    folder = tmp_path / "folder"
    made = functools.partial(make_callbacks, str(diary))
    launcher = turn(
        build_dense,
        FORMS["labels"],
        fit_kwargs={"callbacks": made if is_made else made(folder)},
    )
    described = play(launcher, FitConfig(BATCH), role="describe")
    assert described.batch_callbacks == ("Diary",)
    assert described.left_out_callbacks == (
        () if is_made else ("Diary", "ModelCheckpoint")
    )
    assert play(launcher, FitConfig(BATCH), role="confirm").outcome is Outcome.OK
    assert list(tmp_path.iterdir()) == (
        [diary] if is_made else []
    )  # the checkpoint is in the folder of the trial


def test_the_optimizers_that_a_step_uses_count_and_no_other(turn, play, tmp_path):
    launcher = turn(
        build_witness,
        FORMS["doubles"],
        model_kwargs={"path": str(tmp_path / "structures")},
    )
    described = play(launcher, FitConfig(BATCH), role="describe", batch_sizes=(8, 32))
    slots = (
        2 * 4 * (WIDTH + 1)
    )  # of Adam; compile made an RMSprop that the step does not use
    assert slots <= described.optimizer_bytes <= slots + 16
    assert described.accumulates_by == ""
    assert [footprint.batch_size for footprint in described.footprints] == [8, 32]


def partial(batch_size=24):
    """Batches of which the last is smaller."""
    return tf.data.Dataset.from_tensor_slices((x_of(), y_of())).batch(batch_size)


def of_five(batch_size=32):
    """Batches of 5, whatever is asked for."""
    return FORMS["tf.data of fixed size"](batch_size=5)


@pytest.mark.parametrize(
    ("size", "data", "asked", "fixed", "samples"),
    [
        (BATCH, FORMS["tf.data of fixed size"], BATCH, BATCH, "64 samples"),
        ("small", FORMS["labels"], BATCH, None, "64 samples"),
        (None, of_five, 32, 5, "60 samples"),
        (None, partial, 24, None, "about 72 samples"),
        (None, of_five, 5, 5, "60 samples"),
        (None, FORMS["labels"], BATCH, None, "64 samples"),
    ],
    ids=[
        "train step",
        "step of small sizes",
        "data",
        "partial batch",
        "data of the asked size",
        "any size",
    ],
)
def test_a_workload_of_one_batch_size_is_recognised(
    turn, play, size, data, asked, fixed, samples
):
    launcher = turn(build_dense, data, model_kwargs={"size": size})
    described = play(launcher, FitConfig(asked), role="describe", batch_sizes=(8, 32))
    assert (described.fixed_batch_size, described.samples_in_words) == (fixed, samples)
    assert ("batch_size" in described.untuned) == (fixed is not None)
    assert described.estimate_problem is None
    assert [footprint.batch_size for footprint in described.footprints] == (
        [8, 32]
        if fixed is None and size is None
        else [BATCH if fixed is None else fixed]
    )


class OldLength(OfX):
    """Its length is computed once, from the first batch size."""

    def __len__(self):
        return SAMPLES // BATCH

    def __getitem__(self, index):
        rows = slice(index * self.batch_size, (index + 1) * self.batch_size)
        return x_of()[rows], y_of()[rows]


def test_a_length_that_does_not_follow_the_batch_size_fixes_it_and_fails_in_one_trial(
    turn, play
):
    launcher = turn(build_dense, OldLength())
    described = play(launcher, FitConfig(BATCH), role="describe", batch_sizes=(8, 32))
    assert described.fixed_batch_size == BATCH
    assert "its length does not follow" in described.untuned["batch_size"]
    measured = play(
        launcher, FitConfig(2 * BATCH, 1, 10, False), longest_epoch_seconds=500.0
    )
    assert (measured.outcome, "at least one sample" in measured.evidence.reason) == (
        Outcome.ERROR,
        True,
    )


def build_for_batches(batch_size=BATCH):
    model = keras.Sequential(
        [keras.Input((WIDTH,), batch_size=batch_size), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
    return model


def test_a_model_that_is_given_the_batch_size_is_built_for_each(turn, play):
    launcher = turn(build_for_batches, FORMS["labels"])
    assert play(launcher, FitConfig(BATCH), role="describe").model_takes_batch
    assert play(launcher, FitConfig(4 * BATCH)).outcome is Outcome.OK


def test_an_iterator_of_images_can_be_sent_and_takes_another_batch_size(tmp_path):
    pictures = np.arange(16.0).reshape(16, 1, 1, 1) * np.ones((1, 4, 4, 3))
    labels = np.arange(16)
    Workload(
        len, ImageDataGenerator().flow(pictures, labels, batch_size=4, shuffle=False)
    ).save(tmp_path)
    sent = copy.copy(load(tmp_path).data)  # as a config is applied
    sent.batch_size = 8
    assert [list(sent[number][1]) for number in range(len(sent))] == [
        list(range(8)),
        list(range(8, 16)),
    ]
    assert next(sent)[0].shape == (8, 4, 4, 3)


def words(**arguments):
    return keras.layers.TextVectorization(output_sequence_length=1, **arguments)


def layers_of_the_users():
    """Objects of Keras that hold functions and classes which Keras finds by no name.

    Each comes with what it makes of 1.
    """
    factor = 3.0

    class Triple(keras.layers.Layer):
        def call(self, x):
            return factor * x

    def relu(x):  # which Keras has, too
        return -factor * x

    def loss(y, predicted):
        return keras.ops.mean(predicted) * factor

    model = keras.Sequential(
        [keras.Input((1,)), Triple(), keras.layers.Activation(relu)]
    )
    model.compile("adam", loss)
    yield keras.layers.Lambda(lambda x: factor * x), factor
    yield model, -(factor**2)
    yield lambda x: model.evaluate(x, x, verbose=0), -(factor**3)


def test_objects_of_keras_are_sent_with_the_functions_and_classes_of_the_users(
    tmp_path,
):
    made = [*layers_of_the_users()]
    vectorize = words(standardize=lambda text: tf.strings.regex_replace(text, "!", ""))
    vectorize.adapt(["yes!"])
    Workload(lambda: (made, vectorize), None).save(tmp_path)
    loaded, vectorized = load(tmp_path).build_model()
    for called, expected in loaded:
        assert np.asarray(called(np.ones((1, 1)))).item() == expected
    assert vectorized(["yes"]).numpy().tolist() == [[2]]
    assert [type(layer).__name__ for layer in loaded[1][0].layers][:1] == ["Triple"]


def test_an_object_that_keras_does_not_load_from_its_own_file_is_named(tmp_path):
    vectorize = words(name="titles")  # without words
    Workload(lambda: vectorize, None).save(tmp_path)
    with pytest.raises(
        UsageError, match=r"^the TextVectorization 'titles', .* Make it inside"
    ):
        load(tmp_path)


def test_an_object_of_keras_is_the_same_whenever_it_is_saved(monkeypatch):
    factor = 3.0

    def identity(bias):
        scaled = keras.layers.Lambda(lambda x: factor * x + bias, name="scaled")
        return identify(build_model=lambda: scaled)

    now = identity(1.0)
    on_a_day = time.struct_time((2001, 1, 1, 0, 0, 0, 0, 1, 0))
    monkeypatch.setattr(
        time, "localtime", lambda *_: on_a_day
    )  # of the files within the file
    assert identity(1.0) == now
    assert identity(2.0) != now
