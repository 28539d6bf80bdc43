"""Ctrl-C that is pressed again while a tune ends leaves nothing behind."""

import json

from tests.commands import ROOT, python

PROGRAM = """
import json, os, signal
import numpy as np, psutil
import autofit
from autofit.machine.device_lock import DeviceLock
from autofit.records.machine import ON_CPU
from autofit.trial.folder import TuneFolder
from autofit.trial.server import ServerConnection
from autofit.trial.watcher import Watcher

interrupted = []

def interrupt_before(owner, name):
    step = getattr(owner, name)
    def run(*args):
        interrupted.append(name)
        signal.raise_signal(signal.SIGINT)
        return step(*args)
    setattr(owner, name, run)

# a trial that runs, and each step that ends it
for owner, name in [
    (Watcher, "poll"), (Watcher, "end"), (ServerConnection, "end"), (TuneFolder, "remove"),
    (ServerConnection, "dismiss_guard"),
]:
    interrupt_before(owner, name)

def build_model():
    import keras
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model

if __name__ == "__main__":
    x = np.ones((64, 4), "float32")
    raised = None
    try:
        autofit.tune(
            build_model, (x, x[:, :1]), batch_size=16, max_trials=1, device="cpu",
            storage="trials.db", progress=False,
        )
    except BaseException as error:
        raised = type(error).__name__
    handler = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    children = [child.name() for child in psutil.Process().children(recursive=True)]
    with DeviceLock(ON_CPU, "a test") as lock:
        is_free = lock.acquire()
    temporary = os.listdir(os.environ["TMPDIR"])
    folders = [name for name in temporary if name.startswith("autofit-tune-")]
    print(json.dumps([interrupted, raised, handler, children, is_free, folders]))
"""


def test_ctrl_c_at_each_step_of_the_end_leaves_no_process_no_folder_and_no_lock(
    tmp_path,
):
    (tmp_path / "train.py").write_text(PROGRAM)
    printed = python(
        "train.py", folder=tmp_path, PYTHONPATH=str(ROOT), TMPDIR=str(tmp_path)
    )
    steps, *left = json.loads(printed.splitlines()[-1])
    assert steps == ["poll", "end", "end", "remove", "dismiss_guard"]
    assert left == ["KeyboardInterrupt", True, [], True, []]
