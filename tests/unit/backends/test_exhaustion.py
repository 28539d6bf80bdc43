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


@pytest.fixture
def exhausted(loaded):
    return TensorFlow().exhausted


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


def test_an_error_of_the_users_own_type_is_never_an_oom(exhausted):
    assert exhausted(OutOfMemoryError("OOM when allocating tensor")) is None


def test_what_an_exception_came_from_counts(exhausted):
    cause, context, own = raised("tensorflow 60607"), ValueError("x"), ValueError("y")
    own.__cause__, own.__context__, context.__context__ = context, cause, own
    assert exhausted(context) is FailureKind.DEVICE_OOM


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


@pytest.mark.parametrize(
    ("message", "is_outside"),
    [
        ("failed to create cublas handle: CUBLAS_STATUS_NOT_INITIALIZED", True),
        ("Could not create cudnn handle: CUDNN_STATUS_NOT_INITIALIZED", True),
        ("No algorithm worked!  Error messages: RESOURCE_EXHAUSTED: Out of memory while trying to allocate", False),
    ],
)
def test_a_library_that_finds_no_memory_is_outside_the_pool(message, is_outside):
    failure = Failure(FailureKind.ERROR, f"InternalError: {message}", f"Traceback\n{message}")
    evidence = ended(failure=failure, log=RETRY).evidence
    assert evidence.outside_pool is is_outside
    assert not ended(failure=failure, log="").evidence.outside_pool  # an error of another kind


def test_an_oom_in_a_pool_smaller_than_its_limit_is_outside_the_pool():
    assert ended(exit_code=-signal.SIGABRT, log=f"{BACKPEDAL}\n{OPERATION}").evidence.outside_pool
    assert not ended(exit_code=-signal.SIGABRT, log=OPERATION).evidence.outside_pool


def test_buffers_of_several_gpus_are_outside_the_pool():
    said = RAISED["tensorflow 59890"]["text"]
    failure = Failure(FailureKind.ERROR, f"UnknownError: {said}", f"Traceback\n{said}")
    assert ended(failure=failure, log=NCCL).evidence.outside_pool


def test_an_error_of_the_users_code_is_no_oom_whatever_the_log_reports():
    assert ended(failure=Failure(FailureKind.ERROR, "ValueError: x", "T"), log=FAILED).outcome is Outcome.ERROR


def test_the_inventory_of_the_allocator_does_not_push_the_failure_out_of_the_record():
    inventory = "I0000 00:00:1.0 1 bfc_allocator.cc:1106] 24 Chunks of size 256 totalling 6.0KiB\n" * 500
    map_of_the_pool = f"W0000 00:00:1.0 1 bfc_allocator.cc:512] {'*' * 90}xx\n"
    tail = ended(exit_code=-signal.SIGABRT, log=f"{OPERATION}\n{inventory}{map_of_the_pool}").evidence.log_tail
    assert tail == (OPERATION[:300],)
