"""How the texts of real failures are classified, in exceptions and in logs."""

import builtins
import pathlib
import signal
import sys
from types import SimpleNamespace

import pytest
import yaml

from autofit import backends
from autofit.backends.exhaustion import SUSPECTS
from autofit.records.states import FailureKind, Outcome, Phase
from autofit.records.trial import Limits
from autofit.trial.outcome import classify
from autofit.trial.watcher import Breach
from autofit.trial.wire import Failure
from tests.unit.trial.test_outcome import ending

GIB = 2**30
TEXTS = yaml.safe_load(pathlib.Path(__file__).with_name("oom_texts.yaml").read_text())
RAISED, LOGS = (
    {entry["source"]: entry for entry in TEXTS[kind]} for kind in ("raised", "logs")
)
OF_SEVERAL_CAUSES = [
    source for source, entry in RAISED.items() if entry["means"] == "suspect"
]


class OpError(Exception):
    """Stands for the error of TensorFlow with this name; the backends take seconds to import."""


ERRORS = SimpleNamespace(
    OpError=OpError,
    **dict.fromkeys(("NotFoundError", "InternalError", "UnknownError"), OpError),
    ResourceExhaustedError=type("ResourceExhaustedError", (OpError,), {}),
    JaxRuntimeError=type("JaxRuntimeError", (RuntimeError,), {}),
    OutOfMemoryError=type("OutOfMemoryError", (RuntimeError,), {}),
)


@pytest.fixture(autouse=True)
def counts(monkeypatch):
    """The counts of torch's allocator; the backends are stand-ins."""
    counts = {}
    cuda = SimpleNamespace(
        memory_stats=lambda: counts,
        mem_get_info=lambda: (counts.get("free", 8 * GIB), 16 * GIB),
    )
    torch = SimpleNamespace(OutOfMemoryError=ERRORS.OutOfMemoryError, cuda=cuda)
    for name in backends.NAMES:
        monkeypatch.setitem(
            sys.modules,
            name,
            torch if name == "torch" else SimpleNamespace(errors=ERRORS),
        )
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    return counts


def raised(source):
    entry = RAISED[source]
    return (getattr(ERRORS, entry["type"], None) or getattr(builtins, entry["type"]))(
        entry["text"]
    )


def ended(**evidence):
    end = ending(**{"exit_code": 1, "phase": Phase.FIRST_STEP} | evidence)
    return classify(end, Limits(GIB, 4 * GIB), backends.current(), on_cpu=False)


def failure(text):
    return Failure(FailureKind.ERROR, text, f"Traceback\n{text}")


def log(source):
    return LOGS[source]["text"]


RETRY, NCCL, BACKPEDAL = map(
    log,
    (
        "tf-pose-estimation 225",
        "tensorflow 36510",
        "the pool gets less than it asked for",
    ),
)


@pytest.mark.parametrize("source", RAISED)
def test_an_exception_is_classified_by_its_text(source, counts):
    entry = RAISED[source]
    counts |= {name: entry[name] for name in ("num_ooms", "free") if name in entry}
    kind = backends.named(entry.get("backend", "tensorflow")).exhausted(raised(source))
    assert (kind or "none") == (
        entry["means"] if entry["means"].endswith("oom") else "none"
    )
    assert bool(SUSPECTS.search(entry["text"])) or source not in OF_SEVERAL_CAUSES


def test_what_an_exception_came_from_counts_and_an_error_of_the_users_own_type_never_does():
    cause = raised("tensorflow 60607")
    context = ValueError("x")
    own = ValueError("y")
    own.__cause__ = context
    own.__context__ = cause
    context.__context__ = own
    assert backends.named("tensorflow").exhausted(context) is FailureKind.DEVICE_OOM
    assert (
        backends.named("tensorflow").exhausted(
            type("Own", (Exception,), {})("OOM when allocating tensor")
        )
        is None
    )


@pytest.mark.parametrize("source", LOGS)
def test_a_line_of_the_log_makes_a_trial_that_its_deadline_ended(source):
    log = f"hello\n{LOGS[source]['text']}\nbye"
    assert (
        ended(exit_code=-signal.SIGKILL, breach=Breach.DEADLINE, log=log).outcome
        == LOGS[source]["means"]
    )


@pytest.mark.parametrize("log", ["", RETRY, BACKPEDAL, NCCL])
@pytest.mark.parametrize("source", OF_SEVERAL_CAUSES)
def test_the_log_decides_about_an_error_with_several_causes(source, log):
    measured = ended(
        failure=failure(f"InternalError: {RAISED[source]['text']}"), log=log
    )
    assert measured.outcome is (Outcome.DEVICE_OOM if log else Outcome.ERROR)
    assert (measured.traceback is None) is bool(log)


CUBLAS = "InternalError: failed to create cublas handle: CUBLAS_STATUS_NOT_INITIALIZED"
TUNING = (
    "InternalError: No algorithm worked!  Error messages: "
    "RESOURCE_EXHAUSTED: Out of memory while trying to allocate"
)


@pytest.mark.parametrize(
    ("text", "log", "is_outside", "outcome"),
    [
        (CUBLAS, RETRY, True, Outcome.DEVICE_OOM),
        (TUNING, RETRY, False, Outcome.DEVICE_OOM),
        (
            f"UnknownError: {RAISED['tensorflow 59890']['text']}",
            NCCL,
            True,
            Outcome.DEVICE_OOM,
        ),  # buffers of several GPUs
        (
            None,
            f"{BACKPEDAL}\n{log('keras 13376')}",
            True,
            Outcome.DEVICE_OOM,
        ),  # the pool is smaller than its limit
        (
            "ValueError: x",
            log("tensorflow 4735"),
            False,
            Outcome.ERROR,
        ),  # of the user's code, whatever the log reports
    ],
)
def test_memory_that_is_missing_outside_the_pool_is_told_apart(
    text, log, is_outside, outcome
):
    measured = (
        ended(failure=failure(text), log=log)
        if text
        else ended(exit_code=-signal.SIGABRT, log=log)
    )
    assert (measured.evidence.outside_pool, measured.outcome) == (is_outside, outcome)


@pytest.mark.parametrize("source", ["tensorflow 60607", "tensorflow 7272"])
def test_code_and_context_of_cuda_lie_outside_the_pool(source):
    assert ended(
        failure=Failure(FailureKind.DEVICE_OOM, RAISED[source]["text"])
    ).evidence.outside_pool


@pytest.mark.parametrize(
    ("source", "is_outside"),
    [
        ("a call of CUDA on torch, before 2.14", True),
        ("a call of CUDA's driver on torch", True),
        ("torch 2.14, outside its pool", True),
        ("torch's allocator", False),
    ],
)
def test_memory_that_torch_lacks_outside_its_pool_does_not_condemn_a_batch(
    source, is_outside, monkeypatch
):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    measured = ended(failure=Failure(FailureKind.DEVICE_OOM, RAISED[source]["text"]))
    assert (measured.outcome, measured.evidence.outside_pool) == (
        Outcome.DEVICE_OOM,
        is_outside,
    )
