"""The device lock, the stored result and the machine of one call; nothing is trained."""

import contextlib
import tempfile
from unittest import mock

import numpy as np
import pytest

from autofit.api import session
from autofit.errors import DeviceBusyError, StorageError, UsageError
from autofit.machine import host
from autofit.machine.device_lock import DeviceLock
from autofit.records.machine import Device, Placement
from autofit.tuning.settings import TuneSettings
from autofit.workload.workload import Workload

GPU = Device(0, "some GPU", "GPU-1", 2**33, 2**33)
WORKLOAD = Workload(len, (np.ones(1), np.ones(1)))


@pytest.fixture(autouse=True)
def detections(tmp_path, monkeypatch):
    """A machine with one GPU; counts how often it is detected."""
    counted = []

    def detected(settings):
        counted.append(settings)
        return host.detect((GPU,)), Placement.on(GPU)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(session, "detect", detected)
    return counted


def run(known, *, wait=True):
    def engine(request, launcher, emit):
        raise AssertionError("nothing is measured here")

    settings = TuneSettings(options={"wait": wait})
    with mock.patch.object(session, "reuse", known):
        return session.run(engine, WORKLOAD, settings, progress=False, is_stored=True)


def test_a_stored_result_does_not_wait_for_the_device(detections):
    with DeviceLock(Placement.on(GPU), "another") as lock:
        assert lock.acquire()
        assert run(lambda request, emit: "stored") == "stored"


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (StorageError("database is locked"), StorageError),
        (UsageError("no room"), DeviceBusyError),
    ],
)
def test_beside_another_autofit_a_limit_may_be_wrong_but_a_failed_storage_is_reported(
    error, raised
):
    def known(request, emit):
        raise error

    with DeviceLock(Placement.on(GPU), "another") as lock:
        assert lock.acquire()
        with pytest.raises(raised):
            run(known, wait=False)


@pytest.mark.parametrize("keeps", [True, False])
def test_what_is_compiled_stays_where_a_study_is_stored_and_nowhere_else(
    tmp_path, monkeypatch, keeps
):
    opened = []

    def launcher(*arguments):
        opened.append(arguments[-1])
        return contextlib.nullcontext()

    monkeypatch.setattr(session, "ProcessLauncher", launcher)
    monkeypatch.setattr(session.gpus, "require_free", lambda gpu: None)
    monkeypatch.setattr(session, "reuse", lambda request, emit: None)
    monkeypatch.setattr(session, "compiled_folder", lambda request: tmp_path)
    session.run(
        lambda *_: None, WORKLOAD, TuneSettings(), progress=False, is_stored=keeps
    )
    assert opened == [tmp_path if keeps else None]


def test_the_machine_is_detected_again_after_waiting(detections, monkeypatch):
    answers = iter([None, "stored meanwhile"])
    with DeviceLock(Placement.on(GPU), "another") as lock:
        assert lock.acquire()
        monkeypatch.setattr(session, "_wait_for", lambda *_: lock.close())
        assert run(lambda request, emit: next(answers)) == "stored meanwhile"
    assert len(detections) == 2
