"""Callbacks: which run in trials, and what is kept of those that do not."""

import pickle
import threading
from pathlib import Path

import pytest

from autofit.workload import fit_options
from autofit.workload.fit_options import TrialCallbacks, takes_folder
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload


class OfKeras:
    """As Keras defines its callbacks: hooks for batches are there, and do nothing."""

    def on_epoch_end(self, epoch, logs=None): ...

    def on_train_batch_end(self, batch, logs=None): ...


OfKeras.on_epoch_end.__module__ = OfKeras.on_train_batch_end.__module__ = "keras.x"


class SaveBest(OfKeras):
    def on_epoch_end(self, epoch, logs=None): ...


class EachBatch(OfKeras):
    def __init__(self):
        self.lock = threading.Lock()

    def on_train_batch_end(self, batch, logs=None): ...


class OfKerasEvery(OfKeras):
    def __init__(self, save_freq):
        self.save_freq = save_freq


def make(folder):
    best = SaveBest()
    best.folder = folder
    return best


def make_nowhere():
    raise AssertionError("trials do not call it")


@pytest.mark.parametrize(
    ("callbacks", "left_out", "of_batches"),
    [
        ([SaveBest(), SaveBest(), OfKeras()], ("SaveBest", "OfKeras"), ()),
        ([EachBatch()], ("EachBatch",), ("EachBatch",)),
        ([OfKerasEvery("epoch")], ("OfKerasEvery",), ()),
        ([OfKerasEvery(100)], ("OfKerasEvery",), ("OfKerasEvery",)),  # of batches
        ([], (), ()),
    ],
)
def test_callbacks_in_a_list_do_not_run_and_need_not_be_pickled(
    callbacks, left_out, of_batches
):
    options = Workload(make, make, fit_kwargs={"callbacks": callbacks}).fit_kwargs
    divided = fit_options.resolved(
        pickle.loads(pickle.dumps(options)), Path("scratch")
    )["callbacks"]
    assert divided == TrialCallbacks((), left_out, of_batches)
    assert (divided.notice(of_script=False) is None) == (not left_out)


def test_a_function_is_called_if_it_takes_a_folder():
    made = fit_options.resolved({"callbacks": make}, Path("scratch"))["callbacks"]
    assert ([callback.folder for callback in made.run], made.left_out) == (
        ["scratch"],
        (),
    )
    not_called = fit_options.resolved({"callbacks": make_nowhere}, Path("scratch"))[
        "callbacks"
    ]
    assert not_called.run == ()
    assert not_called.notice(of_script=False)
    assert (
        not_called.of_batches
    )  # unknown, so that calls of several steps are not tried


def test_the_source_of_a_named_function_shows_whether_it_takes_a_folder():
    file = Path(__file__)
    takes = {
        name: takes_folder(Reference(f"{file.name}:{name}", str(file.parent)))
        for name in ("make", "make_nowhere")
    }
    assert takes == {"make": True, "make_nowhere": False}
