"""Callbacks: which run in trials, and what is kept of those that do not."""

import pickle
import threading
from pathlib import Path

import pytest

from autofit.workload import fit_options
from autofit.workload.fit_options import TrialCallbacks, takes_folder
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload


def of_keras(name, base=object, **members):
    """A class as Keras defines it."""
    return type(name, (base,), {"on_epoch_end": lambda self, epoch, logs=None: None, "__module__": "keras.x", **members})


Base = of_keras("Callback")
History, SwapEMAWeights = of_keras("History", Base), of_keras("SwapEMAWeights", Base)
ModelCheckpoint = of_keras("ModelCheckpoint", Base, __init__=lambda self, path="": setattr(self, "path", path))
LambdaCallback = of_keras("LambdaCallback", Base)


class SaveBest(Base):
    def on_epoch_end(self, epoch, logs=None):
        """As a user's own that writes the best weights."""


class Swaps(SwapEMAWeights):
    """A subclass of a callback that runs."""


class EachBatch(Base):
    lock = threading.Lock()

    def on_train_batch_end(self, batch, logs=None):
        """As a user's own that counts."""


def make(folder):
    return [SaveBest(), ModelCheckpoint(folder)]


def make_nowhere():
    raise AssertionError("trials do not call this function")


@pytest.mark.parametrize(
    ("callbacks", "run", "left_out", "of_batches"),
    [
        ([History(), SwapEMAWeights()], ["History", "SwapEMAWeights"], (), ()),
        ([SaveBest(), SaveBest(), History()], ["History"], ("SaveBest",), ()),
        ([ModelCheckpoint()], [], ("ModelCheckpoint",), ()),
        ([Swaps()], [], ("Swaps",), ()),
        ([EachBatch()], [], ("EachBatch",), ("EachBatch",)),
        (SaveBest(), [], ("SaveBest",), ()),
        ([], [], (), ()),
    ],
)
def test_only_those_of_keras_that_touch_nothing_run(callbacks, run, left_out, of_batches):
    divided = TrialCallbacks.of_objects(callbacks)
    assert [type(callback).__name__ for callback in divided.run] == run
    assert (divided.left_out, divided.of_batches) == (left_out, of_batches)
    notice = divided.notice()
    assert all(name in (notice or "") for name in left_out)
    assert (notice is None) == (not left_out)


def test_the_function_that_a_lambda_callback_calls_after_a_batch_is_the_users():
    callback = LambdaCallback()
    callback.on_train_batch_end = lambda batch, logs: None
    assert TrialCallbacks.of_objects([callback]).of_batches == ("LambdaCallback",)


def test_callbacks_that_are_left_out_need_not_be_pickled():
    callback = EachBatch()
    callback.lock = threading.Lock()
    workload = Workload(make, make, fit_kwargs={"callbacks": [callback]})
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(callback)
    assert pickle.loads(pickle.dumps(workload.fit_kwargs))["callbacks"].left_out == ("EachBatch",)


def test_a_function_is_called_if_it_takes_a_folder():
    made = fit_options.resolved({"callbacks": make}, Path("scratch"))["callbacks"]
    assert [type(callback) for callback in made.run] == [SaveBest, ModelCheckpoint]
    assert (made.run[1].path, made.left_out) == ("scratch", ())
    not_called = fit_options.resolved({"callbacks": make_nowhere}, Path("scratch"))["callbacks"]
    assert not_called.run == ()
    assert "make_nowhere()" in not_called.notice()
    assert not_called.of_batches  # unknown, so that calls of several steps are not tried


def test_the_source_of_a_named_function_shows_whether_it_takes_a_folder():
    file = Path(__file__)
    assert takes_folder(Reference(f"{file.name}:make", str(file.parent)))
    assert not takes_folder(Reference(f"{file.name}:make_nowhere", str(file.parent)))
    assert not takes_folder(Reference("package.module:make"))
