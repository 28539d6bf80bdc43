"""The crash matrix, for real: what happens in a trial's process, the outcome, the evidence."""

import json
import os
import signal

import pytest

from autofit.errors import UsageError
from autofit.machine import host
from autofit.records.knobs import FitConfig
from autofit.records.states import Outcome
from autofit.trial.launcher import ProcessLauncher
from autofit.workload.workload import Workload
from tests import workloads as w
from tests.commands import PACKAGE

tf = pytest.importorskip("tensorflow")

INLINE, THREADS, PROCESSES = (1, 10, False), (2, 2, False), (2, 2, True)


@pytest.mark.parametrize(
    ("case", "knobs", "outcome", "reason"),
    [
        (w.CHATTERS, THREADS, Outcome.OK, "finished"),
        (w.KILLED, PROCESSES, Outcome.CRASHED, ") died by SIGKILL"),
        (w.SEGFAULTS, PROCESSES, Outcome.CRASHED, ") died by SIGSEGV"),
        (w.EXITS, THREADS, Outcome.CRASHED, "exited with status 3"),
        (w.MEMORY_ERROR, THREADS, Outcome.HOST_OOM, "Unable to allocate 1.00 PiB"),
    ],
)
def test_the_outcome_is_what_happened(turn, play, case, knobs, outcome, reason):
    measurement = play(turn(), FitConfig(case, *knobs))
    assert (measurement.outcome, measurement.evidence.signal) == (outcome, None), (
        measurement.evidence
    )
    assert reason in measurement.evidence.reason
    assert (measurement.samples_per_second is not None) == (outcome is Outcome.OK)


@pytest.mark.parametrize(("case", "is_hang"), [(w.LEAVES, False), (w.HANGS, True)])
def test_a_hang_is_noticed_once_pauses_are_known_and_a_thread_that_ended_is_none(
    turn, play, case, is_hang
):
    launcher = turn()
    if is_hang:  # while no pause is known, only the deadline ends it
        assert not play(launcher, FitConfig(case, *THREADS), seconds=10).evidence.hung
    assert play(launcher, FitConfig(w.OK, *INLINE)).outcome is Outcome.OK
    for knobs in (THREADS, PROCESSES):
        measurement = play(launcher, FitConfig(case, *knobs))
        assert (measurement.outcome is Outcome.TIMEOUT, measurement.evidence.hung) == (
            is_hang,
            is_hang,
        )


def test_a_device_oom_is_one_whether_it_raises_or_dies_by_a_signal(play, monkeypatch):
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")
    monkeypatch.setenv(
        "TF_CPP_MIN_LOG_LEVEL", "3"
    )  # a user who silences TensorFlow must not silence the evidence
    with ProcessLauncher(Workload(w.build_model, w.Cases)) as launcher:
        measurement = play(
            launcher, FitConfig(w.BIG, *INLINE), device_bytes=w.DEVICE_BYTES
        )
    assert measurement.outcome is Outcome.DEVICE_OOM
    assert (
        measurement.evidence.signal or "ResourceExhausted"
    ) in measurement.evidence.reason  # a race in TensorFlow


def returns_a_list(batch_size):
    return [1, 2, 3]


class ForgetsItsKwargs(w.Cases):
    def __init__(self, batch_size, workers=1):
        super().__init__(batch_size)


def build_with_two_hosts(strategy=None):
    workers = ["localhost:23451", "192.0.2.1:23451"]  # an address that no host has
    cluster = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": 0}}
    os.environ["TF_CONFIG"] = json.dumps(cluster)
    if strategy is not None:
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        getattr(tf.distribute, strategy)(cluster_resolver=resolver)
    return w.build_model()


@pytest.mark.parametrize(
    "strategy", ["MultiWorkerMirroredStrategy", "ParameterServerStrategy"]
)
def test_a_strategy_of_several_hosts_is_refused_before_it_waits_for_them(
    turn, play, strategy
):
    launcher = turn(build_with_two_hosts, model_kwargs={"strategy": strategy})
    with pytest.raises(
        UsageError, match=f"several hosts cannot be tuned: .* a {strategy}"
    ):
        play(launcher, FitConfig(8, *INLINE), role="describe")


def test_a_program_that_does_not_use_the_cluster_that_it_names_is_tuned(turn, play):
    measurement = play(turn(build_with_two_hosts), FitConfig(w.OK, *INLINE))
    assert measurement.outcome is Outcome.OK


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        ({"build_model": lambda: "a string"}, "builtins.str"),
        ({"data": returns_a_list}, "numpy.array"),
        ({"data": ForgetsItsKwargs}, "workers=2"),
    ],
)
def test_what_autofit_does_not_take_is_refused(turn, play, parts, name):
    with pytest.raises(UsageError, match=name):
        play(turn(**parts), FitConfig(8, *THREADS))


@pytest.mark.parametrize(
    ("parts", "error", "phase"),
    [
        ({"model_kwargs": {"fail": True}}, "RuntimeError", "building"),
        ({"data": w.opens_nothing}, "FileNotFoundError", "opening"),
    ],
)
def test_the_users_bugs_are_the_users_own(turn, play, parts, error, phase):
    measurement = play(turn(**parts))
    assert (measurement.outcome, measurement.evidence.phase) == (Outcome.ERROR, phase)
    assert error in measurement.traceback
    assert PACKAGE not in measurement.traceback


class DiesOfSharedMemory(w.Cases):
    """Dies as a process does that writes to a full /dev/shm.

    It does so right after it has written `marker`.
    """

    def __init__(self, batch_size, marker, **kwargs):
        super().__init__(batch_size, **kwargs)
        self.marker = marker

    def __getitem__(self, index):
        if index > 3:
            with open(self.marker, "w"):
                os.kill(os.getpid(), signal.SIGBUS)
        return super().__getitem__(index)


def test_shared_memory_is_read_once_more_when_a_trial_has_ended(
    turn, play, tmp_path, monkeypatch
):
    marker = tmp_path / "marker"
    monkeypatch.setattr(
        host,
        "shared_memory",
        lambda: (64 * 2**20, 0 if marker.exists() else 64 * 2**20),
    )
    measurement = play(
        turn(data=DiesOfSharedMemory, data_kwargs={"marker": str(marker)})
    )
    assert measurement.outcome is Outcome.HOST_OOM
    assert "/dev/shm full" in measurement.evidence.reason


def test_code_that_closes_all_files_and_opens_its_own_is_tried_and_they_stay_its_own(
    play, tmp_path
):
    file = tmp_path / "theirs.txt"
    closes = Workload(w.build_after_closing, w.Cases, model_kwargs={"file": str(file)})
    with ProcessLauncher(closes, launch="plain") as plain:
        measurement = play(plain)
    assert measurement.outcome is Outcome.OK, measurement.evidence
    assert file.read_text() == "theirs" * 100
