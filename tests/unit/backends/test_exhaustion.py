"""How the texts of real failures are classified, in exceptions and in logs."""

import builtins
import pathlib
import signal
import sys
from types import SimpleNamespace

import pytest
import yaml

from autofit import backends
from autofit.backends import exhaustion as signs
from autofit.backends.jax.backend import Jax
from autofit.backends.tensorflow.backend import TensorFlow
from autofit.backends.torch.backend import Torch
from autofit.records.states import FailureKind, Outcome, Phase
from autofit.records.trial import Limits
from autofit.trial.outcome import classify
from autofit.trial.watcher import StopReason
from autofit.trial.wire import Failure
from tests.unit.trial.test_outcome import ending

GIB = 2**30
TEXTS = yaml.safe_load(pathlib.Path(__file__).with_name("oom_texts.yaml").read_text())
RAISED = {entry["source"]: entry for entry in TEXTS["raised"]}
LOGS = {entry["source"]: entry for entry in TEXTS["logs"]}
BACKENDS = {"tensorflow": TensorFlow(), "jax": Jax(), "torch": Torch()}
SUSPECTS = [source for source, entry in RAISED.items() if entry["means"] == "suspect"]
NCCL = LOGS["tensorflow 36510"]["text"]
RETRY, FAILED = LOGS["tf-pose-estimation 225"]["text"], LOGS["tensorflow 4735"]["text"]
BACKPEDAL, OPERATION = LOGS["the pool gets less than it asked for"]["text"], LOGS["keras 13376"]["text"]


class Errors:
    """Stands for `tf.errors`, which takes seconds to import."""

    class OpError(Exception):
        """An operation failed."""

    class ResourceExhaustedError(OpError):
        """Something ran out."""

    NotFoundError = InternalError = UnknownError = OpError

    class JaxRuntimeError(RuntimeError):
        """XLA's runtime failed; of `jax.errors`."""

    class OutOfMemoryError(RuntimeError):
        """torch's own."""


class OutOfMemoryError(Exception):
    """One of the user's own."""


@pytest.fixture
def loaded(monkeypatch):
    """Stand-ins for the three backends; returns the counts of torch's allocator."""
    counts = {}
    cuda = SimpleNamespace(memory_stats=lambda: counts)
    for name, module in {
        "tensorflow": SimpleNamespace(errors=Errors),
        "jax": SimpleNamespace(errors=Errors),
        "torch": SimpleNamespace(OutOfMemoryError=Errors.OutOfMemoryError, cuda=cuda),
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    return counts


def raised(source):
    entry = RAISED[source]
    return (getattr(Errors, entry["type"], None) or getattr(builtins, entry["type"]))(entry["text"])


def ended(**evidence):
    end = ending(**{"exit_code": 1, "phase": Phase.FIRST_STEP} | evidence)
    return classify(end, Limits(GIB, 4 * GIB), backends.current(), on_cpu=False)


@pytest.mark.parametrize("source", RAISED)
def test_an_exception_is_classified_by_its_text(source, loaded):
    entry = RAISED[source]
    loaded["num_ooms"] = entry.get("num_ooms", 0)
    kind = BACKENDS[entry.get("backend", "tensorflow")].exhausted(raised(source))
    assert (kind or "none") == (RAISED[source]["means"] if RAISED[source]["means"].endswith("oom") else "none")
    assert bool(signs.SUSPECTS.search(RAISED[source]["text"])) or source not in SUSPECTS


@pytest.mark.usefixtures("loaded")
def test_what_an_exception_came_from_counts_and_an_error_of_the_users_own_type_never_does():
    cause, context, own = raised("tensorflow 60607"), ValueError("x"), ValueError("y")
    own.__cause__, own.__context__, context.__context__ = context, cause, own
    assert TensorFlow().exhausted(context) is FailureKind.DEVICE_OOM
    assert TensorFlow().exhausted(OutOfMemoryError("OOM when allocating tensor")) is None


@pytest.mark.parametrize("source", LOGS)
def test_a_line_of_the_log_makes_a_trial_that_its_deadline_ended(source):
    log = f"hello\n{LOGS[source]['text']}\nbye"
    assert ended(exit_code=-signal.SIGKILL, stopped=StopReason.DEADLINE, log=log).outcome == LOGS[source]["means"]


@pytest.mark.parametrize(
    ("log", "outcome"),
    [("", Outcome.ERROR), (RETRY, Outcome.DEVICE_OOM), (BACKPEDAL, Outcome.DEVICE_OOM), (NCCL, Outcome.DEVICE_OOM)],
)
@pytest.mark.parametrize("source", SUSPECTS)
def test_the_log_decides_about_an_error_with_several_causes(source, log, outcome):
    said = RAISED[source]["text"]
    measured = ended(failure=Failure(FailureKind.ERROR, f"InternalError: {said}", f"Traceback\n{said}"), log=log)
    assert measured.outcome is outcome
    assert (measured.traceback is None) is (outcome is Outcome.DEVICE_OOM)


OF_LIBRARY = "failed to create cublas handle: CUBLAS_STATUS_NOT_INITIALIZED"
OF_AUTOTUNING = "No algorithm worked!  Error messages: RESOURCE_EXHAUSTED: Out of memory while trying to allocate"


@pytest.mark.parametrize(
    ("raised_text", "log", "is_outside"),
    [
        (f"InternalError: {OF_LIBRARY}", RETRY, True),
        (f"InternalError: {OF_LIBRARY}", "", False),  # an error of another kind
        ("InternalError: Could not create cudnn handle: CUDNN_STATUS_NOT_INITIALIZED", RETRY, True),
        (f"InternalError: {OF_AUTOTUNING}", RETRY, False),
        (f"UnknownError: {RAISED['tensorflow 59890']['text']}", NCCL, True),  # buffers of several GPUs
        (None, f"{BACKPEDAL}\n{OPERATION}", True),  # the pool is smaller than its limit
        (None, OPERATION, False),
        ("ValueError: x", FAILED, False),  # of the user's code: no OOM whatever the log reports
    ],
)
def test_memory_that_is_missing_outside_the_pool_is_told_apart(raised_text, log, is_outside):
    failure = raised_text and Failure(FailureKind.ERROR, raised_text, f"Traceback\n{raised_text}")
    measured = ended(failure=failure, log=log) if failure else ended(exit_code=-signal.SIGABRT, log=log)
    assert measured.evidence.outside_pool is is_outside
    assert (measured.outcome is Outcome.ERROR) == (log == "" or raised_text == "ValueError: x")


def test_the_inventory_of_the_allocator_does_not_push_the_failure_out_of_the_record():
    inventory = "I0000 00:00:1.0 1 bfc_allocator.cc:1106] 24 Chunks of size 256 totalling 6.0KiB\n" * 500
    map_of_the_pool = f"W0000 00:00:1.0 1 bfc_allocator.cc:512] {'*' * 90}xx\n"
    tail = ended(exit_code=-signal.SIGABRT, log=f"{OPERATION}\n{inventory}{map_of_the_pool}").evidence.log_tail
    assert tail == (OPERATION[:300],)
