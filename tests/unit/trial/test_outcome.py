"""The outcome of a trial by its exit status, messages, log and readings, in one table."""

import math
import signal
from dataclasses import replace

import pytest

from autofit import backends
from autofit.records.states import FailureKind, Outcome, Phase
from autofit.records.trial import Evidence, Limits, Measurement
from autofit.trial import outcome
from autofit.trial.outcome import TrialEnd, classify
from autofit.trial.watcher import Breach, Readings
from autofit.trial.wire import Failure, Message

GIB = 2**30
LIMITS = Limits(device_bytes=GIB, host_bytes=4 * GIB)
TF_OOM = (
    "W0000 op_kernel.cc:1858] RESOURCE_EXHAUSTED: "
    "OOM when allocating tensor with shape[96,31,31,8]\n"
)
SLOW_ZONE = (
    "W tensorflow] ran out of memory trying to allocate 2GiB. "
    "The caller indicates that this is not a failure\n"
)
# a semaphore of a pool of processes that found no room
NO_SPACE = "OSError: [Errno 28] No space left on device"
RAN = Measurement(
    Outcome.OK,
    Evidence("finished"),
    samples_per_second=100.0,
    spread=0.01,
    steps=10,
    device_peak_bytes=GIB // 2,
)


SHM_NONE, SHM_FULL, SHM_FREE = (
    {"least_shared_memory_bytes": size} for size in (math.inf, 4096, GIB)
)


def ending(**evidence):
    sent = {"phase": Phase.TRAINING, "measurement": None, "failure": None}
    read = {
        "last_bytes": GIB,
        "peak_bytes": GIB,
        "pause_seconds": 0.0,
        "breach": None,
        **SHM_NONE,
    }
    rest = {
        "exit_code": 0,
        "started_at": 0.0,
        "seconds": 5.0,
        "kernel_oom_kills": 0,
        "log": "",
    }
    for known in (sent, read, rest):
        known |= {name: evidence.pop(name) for name in known if name in evidence}
    others = {
        "peak_by_phase": {},
        "seconds_by_phase": {},
        "driver_peak_bytes": None,
        "conditions": None,
    }
    return TrialEnd(
        messages=Message(**sent),
        readings=Readings(**read, **others),
        **rest,
        **evidence,
    )


def failed(kind, reason="x", traceback=None):
    return {"exit_code": 1, "failure": Failure(kind, reason, traceback)}


def died(number, **evidence):
    return {"exit_code": -number, **evidence}


LIMIT, DEADLINE, HANG = (
    {"exit_code": -signal.SIGKILL, "breach": why}
    for why in (Breach.HOST_LIMIT, Breach.DEADLINE, Breach.HANG)
)
WORKER_DIED = failed(FailureKind.WORKER_DIED, "a worker died")
BUS_ERROR = "a worker process (pid 7) is killed by signal: Bus error"
BAD_ALLOC = "terminate: what(): std::bad_alloc\n"


@pytest.mark.parametrize(
    ("evidence", "outcome", "reason"),
    [
        ({"measurement": RAN, **died(signal.SIGSEGV)}, Outcome.OK, "finished"),
        (
            {"measurement": replace(RAN, device_peak_bytes=2 * GIB)},
            Outcome.DEVICE_OOM,
            "over the device limit",
        ),
        (
            failed(FailureKind.DEVICE_OOM, "ResourceExhaustedError: OOM"),
            Outcome.DEVICE_OOM,
            "OOM",
        ),
        (
            failed(FailureKind.HOST_OOM, "MemoryError: 2 TiB"),
            Outcome.HOST_OOM,
            "MemoryError",
        ),
        (failed(FailureKind.ERROR, "ValueError: x", "T"), Outcome.ERROR, "ValueError"),
        (
            {**failed(FailureKind.ERROR, "x", NO_SPACE), **SHM_FULL},
            Outcome.HOST_OOM,
            "device) with /dev/shm full",
        ),
        ({**failed(FailureKind.ERROR, "x", NO_SPACE), **SHM_FREE}, Outcome.ERROR, "x"),
        (failed(FailureKind.WORKER_DIED, BUS_ERROR), Outcome.HOST_OOM, "--shm-size"),
        (WORKER_DIED, Outcome.CRASHED, "a worker died while training"),
        (
            {**WORKER_DIED, "kernel_oom_kills": 1},
            Outcome.HOST_OOM,
            "25% of the host limit",
        ),
        (
            died(signal.SIGSEGV, log=TF_OOM),
            Outcome.DEVICE_OOM,
            "died by SIGSEGV after the allocator wrote: OOM",
        ),
        (died(signal.SIGBUS, **SHM_FULL), Outcome.HOST_OOM, "with /dev/shm full"),
        (died(signal.SIGBUS, **SHM_FREE), Outcome.CRASHED, "died by SIGBUS"),
        (
            died(signal.SIGSEGV, log=SLOW_ZONE),
            Outcome.CRASHED,
            "died by SIGSEGV while training",
        ),
        (died(signal.SIGABRT, log=BAD_ALLOC), Outcome.HOST_OOM, "std::bad_alloc"),
        (
            died(signal.SIGKILL, last_bytes=int(3.8 * GIB)),
            Outcome.HOST_OOM,
            "95% of the host limit",
        ),
        (died(signal.SIGKILL, kernel_oom_kills=1), Outcome.HOST_OOM, "OOM killer: 1"),
        (died(signal.SIGKILL), Outcome.CRASHED, "died by SIGKILL"),
        (
            {**LIMIT, "last_bytes": int(4.1 * GIB)},
            Outcome.HOST_OOM,
            "4.10 GiB, 2.5% over",
        ),
        (DEADLINE, Outcome.TIMEOUT, "at its deadline after 5.0 s, while training"),
        ({**DEADLINE, "log": TF_OOM}, Outcome.DEVICE_OOM, "allocator wrote"),
        (
            {**HANG, "pause_seconds": 15.0},
            Outcome.TIMEOUT,
            "hung: its processes were idle for 15 s while training",
        ),
        ({"exit_code": 3}, Outcome.CRASHED, "exited with status 3"),
        (
            {"exit_code": None, "phase": None},
            Outcome.CRASHED,
            "lost together with the trial server while starting",
        ),
    ],
)
def test_the_evidence_decides(evidence, outcome, reason):
    measurement = classify(ending(**evidence), LIMITS, backends.current(), on_cpu=True)
    assert measurement.outcome is outcome
    assert reason in measurement.evidence.reason
    assert (measurement.samples_per_second is not None) == (outcome is Outcome.OK)
    assert (measurement.traceback is not None) == (outcome is Outcome.ERROR)
    assert measurement.evidence.hung == (
        outcome is Outcome.TIMEOUT and "hung" in reason
    )


def test_the_record_names_the_signal_and_keeps_the_end_of_the_log_without_an_inventory():
    log = "hello\n" + "I bfc_allocator.cc] Chunk at 7f00 of size 256\n" * 1000 + TF_OOM
    evidence = classify(
        ending(exit_code=-signal.SIGSEGV, log=log),
        LIMITS,
        backends.current(),
        on_cpu=True,
    ).evidence
    assert (evidence.signal, evidence.exit_code, evidence.phase) == (
        "SIGSEGV",
        -11,
        "training",
    )
    assert evidence.log_tail == ("hello", TF_OOM.strip())
    assert evidence.last_host_bytes == GIB


def test_where_the_device_has_no_memory_of_its_own_its_oom_is_the_hosts():
    end = ending(exit_code=-signal.SIGSEGV, log=TF_OOM)
    limits = Limits(None, 4 * GIB)
    backend = backends.current()
    outcomes = [
        classify(end, limits, backend, on_cpu=on_cpu).outcome
        for on_cpu in (True, False)
    ]
    assert outcomes == [Outcome.HOST_OOM, Outcome.DEVICE_OOM]


def test_a_chatty_trial_does_not_fill_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(outcome, "_MOST_LOG_BYTES", 2**20)
    log = tmp_path / "trial.log"
    with log.open("ab", buffering=0) as chatty:
        chatty.write(b"first\n" + b"chatter\n" * 2**18)
        outcome.cap_log(log)
        assert log.stat().st_size < 2**19
        chatty.write(b"chatter\n" * 2**20 + b"last\n")
    text = outcome.read_log(log)  # of a long log, its beginning and its end
    assert (text.startswith("first\n"), text.endswith("last\n"), len(text) < 2**22) == (
        True,
        True,
        True,
    )
