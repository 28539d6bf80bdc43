"""Files of a trial that cannot be written, and a /dev/shm that takes nothing, in real trials."""

import _multiprocessing
import errno
import os
import resource

import numpy as np
import pytest

from autofit.errors import TrialProcessError, UsageError
from autofit.machine import host
from autofit.records.knobs import FitConfig
from autofit.records.states import Outcome
from tests import workloads as w
from tests.trial.test_outcomes import INLINE, PROCESSES

NOT_WRITABLE = (
    "autofit-tune-.*is not writable: {}. Free some space there, or set TMPDIR"
)


class FillsDisk(w.Cases):
    """From its first batch on, the disk is full: no file grows beyond what a semaphore takes."""

    def __getitem__(self, index):
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))
        return super().__getitem__(index)


class Texts(FillsDisk):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return np.ones((len(x), 8 + index % 2), "int32"), y


@pytest.mark.parametrize("knobs", [INLINE, PROCESSES])
def test_the_users_error_is_told_although_it_cannot_be_saved(turn, play, knobs):
    measurement = play(turn(data=FillsDisk), FitConfig(w.RAISES, *knobs))
    assert measurement.outcome is Outcome.ERROR
    assert measurement.evidence.reason == "ValueError: the fifth picture is broken"


def test_the_shapes_of_batches_that_cannot_be_saved_are_no_error_of_the_user(
    turn, play
):
    with pytest.raises(UsageError, match=NOT_WRITABLE.format("File too large")):
        play(turn(w.build_for_texts, Texts), role="describe")


def test_a_full_disk_between_two_trials_ends_the_tune(turn, play):
    launcher = turn()
    task = launcher._folder.path / f"trial-{launcher._trial_count + 1}.json"
    task.symlink_to("/dev/full")
    with pytest.raises(
        TrialProcessError, match=NOT_WRITABLE.format(os.strerror(errno.ENOSPC))
    ):
        play(launcher)
    task.unlink()


def build_where_nothing_is_shared(number):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    refuse.SEM_VALUE_MAX = 1
    _multiprocessing.SemLock = refuse
    return w.build_model()


def test_a_full_shared_memory_is_an_outcome_and_one_that_is_read_only_ends_the_tune(
    turn, play, monkeypatch
):
    monkeypatch.setattr(host, "shared_memory", lambda: (2**16, 0))
    launcher = turn(
        build_where_nothing_is_shared, model_kwargs={"number": errno.ENOSPC}
    )
    measurement = play(launcher)
    assert measurement.outcome is Outcome.HOST_OOM
    assert "with /dev/shm full; give the container more" in measurement.evidence.reason
    launcher = turn(build_where_nothing_is_shared, model_kwargs={"number": errno.EROFS})
    with pytest.raises(
        UsageError, match="Read-only file system; make /dev/shm writable"
    ):
        play(launcher)
