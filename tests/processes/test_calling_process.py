"""A tune leaves the process that calls it as it was, however it ends."""

import json

import pytest

from tests.commands import ROOT, python

PROGRAM = """
import json, logging, multiprocessing, os, random, signal, sys, threading, warnings
import keras, numpy as np, optuna
import scipy.special  # whose import adds a filter for its own warnings
import autofit
from keras.src.random.seed_generator import global_seed_generator
from autofit.trial.launcher import ProcessLauncher

how_it_ends = sys.argv[1]
x = np.ones((64, 4), "float32")

def build_model():
    if how_it_ends == "fails":
        raise ValueError("the user's own")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model

def state():
    loggers = {name: logging.getLogger(name).level for name in ("", "optuna", "autofit", "keras")}
    return {
        "loggers": loggers,
        "handlers of the root logger": repr(logging.root.handlers),
        "optuna": optuna.logging.get_verbosity(),
        "warnings": repr(warnings.filters),
        "signals": {n.name: repr(signal.getsignal(n)) for n in signal.valid_signals()
                    if isinstance(n, signal.Signals)},
        "environment": dict(os.environ),
        "random": repr(random.getstate()),
        "numpy": repr(np.random.get_state()),
        "keras": repr(global_seed_generator().state.numpy()),
        "start method": multiprocessing.get_start_method(allow_none=True),
        "folder": os.getcwd(),
        "path": sys.path,
        "arguments": sys.argv,
        "hooks": repr((sys.excepthook, threading.excepthook, sys.unraisablehook)),
        "streams": repr((sys.stdin, sys.stdout, sys.stderr)),
        "mask of new files": [os.umask(0o22), os.umask(0o22)][0],
    }

if __name__ == "__main__":
    # what a first use sets by itself is not of the tune
    optuna.create_study()
    keras.utils.set_random_seed(1)
    global_seed_generator()  # which Keras seeds by a number of Python's `random`
    warnings.filterwarnings("error", "a warning of the user's")
    signal.signal(signal.SIGTERM, lambda *_: None)
    if how_it_ends == "is interrupted":
        run = ProcessLauncher.run
        def interrupted(self, *arguments):
            signal.raise_signal(signal.SIGINT)
            return run(self, *arguments)
        ProcessLauncher.run = interrupted
    before = state()
    raised = None
    try:
        autofit.tune(
            build_model, (x, x[:, :1]), batch_size=16, max_trials=1, device="cpu",
            storage="trials.db", progress=False,
        )
    except (autofit.AutofitError, KeyboardInterrupt) as error:
        raised = type(error).__name__
    after = state()
    changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    print(json.dumps([raised, changed], default=repr))
"""


@pytest.mark.parametrize(
    ("how_it_ends", "raised"),
    [
        ("ends", None),
        ("fails", "UserCodeError"),
        ("is interrupted", "KeyboardInterrupt"),
    ],
)
def test_a_tune_leaves_the_calling_process_as_it_was(tmp_path, how_it_ends, raised):
    (tmp_path / "train.py").write_text(PROGRAM)
    printed = python("train.py", how_it_ends, folder=tmp_path, PYTHONPATH=str(ROOT))
    assert json.loads(printed.splitlines()[-1]) == [raised, {}]
