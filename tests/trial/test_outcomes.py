"""The crash matrix, for real: what happens in a trial's process, the outcome, the evidence."""

import pytest

from autofit.errors import UsageError
from autofit.machine import host
from autofit.records.states import Outcome
from autofit.records.trial import FitConfig
from tests import workloads as w

THREADS, PROCESSES = (2, 2, False), (2, 2, True)
INLINE = (1, 10, False)
GIB = 2**30


@pytest.mark.parametrize(
    ("case", "knobs", "outcome", "told", "signal"),
    [
        (w.CHATTERS, THREADS, Outcome.OK, "finished", None),
        (w.KILLED, THREADS, Outcome.CRASHED, "died by SIGKILL", "SIGKILL"),
        (w.KILLED, PROCESSES, Outcome.CRASHED, ") died by SIGKILL", None),
        (w.SEGFAULTS, PROCESSES, Outcome.CRASHED, ") died by SIGSEGV", None),
        (w.EXITS, PROCESSES, Outcome.CRASHED, ") exited with status 3", None),
        (w.EXITS, THREADS, Outcome.CRASHED, "exited with status 3", None),
        (w.MEMORY_ERROR, THREADS, Outcome.HOST_OOM, "Unable to allocate 1.00 PiB", None),
    ],
)
def test_the_outcome_is_what_happened(warm, play, case, knobs, outcome, told, signal):
    measurement = play(warm, FitConfig(case, *knobs))
    assert (measurement.outcome, measurement.evidence.signal) == (outcome, signal), measurement.evidence
    assert told in measurement.evidence.reason
    assert (measurement.samples_per_second is not None) == (outcome is Outcome.OK)


@pytest.mark.slow
def test_a_hang_ends_at_its_deadline_while_nothing_is_known_of_pauses(start, play):
    measurement = play(start(), FitConfig(w.HANGS, *THREADS), seconds=8)
    assert measurement.outcome is Outcome.TIMEOUT
    assert not measurement.evidence.hung


@pytest.mark.parametrize("knobs", [INLINE, THREADS, PROCESSES])
def test_a_thread_that_the_users_code_ended_is_no_hang(warm, play, knobs):
    assert play(warm, FitConfig(w.OK, *INLINE)).outcome is Outcome.OK  # its pauses say what a hang is
    measurement = play(warm, FitConfig(w.LEAVES, *knobs))
    assert measurement.outcome in (Outcome.ERROR, Outcome.CRASHED)
    assert "SystemExit: no more pictures" in (measurement.traceback or "") or "a worker" in measurement.evidence.reason


@pytest.mark.slow
@pytest.mark.parametrize("knobs", [INLINE, THREADS, PROCESSES])
def test_a_hang_is_noticed_before_its_deadline(warm, play, knobs):
    assert play(warm, FitConfig(w.OK, *INLINE)).outcome is Outcome.OK
    measurement = play(warm, FitConfig(w.HANGS, *knobs))
    assert measurement.outcome is Outcome.TIMEOUT
    assert measurement.evidence.hung


@pytest.mark.parametrize(("case", "knobs"), [(w.FILLS_HOST, INLINE), (w.FILLS_SLOWLY, THREADS), (w.FILLS_HOST, PROCESSES)])
def test_the_watcher_ends_a_tree_over_the_host_limit(warm, play, case, knobs):
    limit = int(1.5 * GIB)
    measurement = play(warm, FitConfig(case, *knobs), host_bytes=limit)
    assert measurement.outcome is Outcome.HOST_OOM
    assert limit < measurement.evidence.last_host_bytes
    assert measurement.host_peak_bytes == measurement.evidence.last_host_bytes


def test_a_device_oom_is_one_whether_it_raises_or_dies_by_a_signal(start, play, monkeypatch):
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")  # a user who silences TensorFlow must not silence the evidence
    measurement = play(start(), FitConfig(w.BIG, *INLINE), device_bytes=w.DEVICE_BYTES)
    assert measurement.outcome is Outcome.DEVICE_OOM
    assert (measurement.evidence.signal or "ResourceExhausted") in measurement.evidence.reason  # a race in TensorFlow


def model_of_keras_2():
    return type("Model", (), {"__module__": "tf_keras.src.engine.training"})()


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        ({"build_model": lambda: "a string"}, ["build_model", " builtins.str"]),
        ({"build_model": model_of_keras_2}, ["build_model", "tf_keras", "Keras 3"]),
        ({"data": w.returns_a_list}, ["list", "int", "numpy.array"]),
        ({"data": w.ForgetsItsKwargs}, ["workers=2", "workers=1"]),
    ],
)
def test_what_autofit_does_not_take_is_refused(turn, play, parts, names):
    with pytest.raises(UsageError) as caught:
        play(turn(**parts), FitConfig(8, *THREADS))
    assert [name for name in names if name not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("parts", "told", "phase"),
    [
        ({"model_kwargs": {"fail": True}}, "RuntimeError: the model cannot be built", "building"),
        ({"data": w.opens_nothing}, "FileNotFoundError: there is no folder", "opening"),
    ],
)
def test_the_users_bugs_are_the_users_own(turn, play, parts, told, phase):
    measurement = play(turn(**parts))
    assert measurement.outcome is Outcome.ERROR
    assert measurement.evidence.phase == phase
    assert told in measurement.traceback
    assert "autofit/" not in measurement.traceback


def test_code_that_closes_all_files_and_opens_its_own_is_tried_and_they_stay_its_own(start, play, tmp_path):
    file = tmp_path / "theirs.txt"
    measurement = play(start(w.build_after_closing, launch="plain", model_kwargs={"file": str(file)}))
    assert measurement.outcome is Outcome.OK, measurement.evidence
    assert file.read_text() == "theirs" * 100


def test_shared_memory_is_read_once_more_when_a_trial_has_ended(start, play, tmp_path, monkeypatch):
    marker = tmp_path / "marker"
    monkeypatch.setattr(host, "shared_memory", lambda: (64 * 2**20, 0 if marker.exists() else 64 * 2**20))
    measurement = play(start(data=w.DiesOfSharedMemory, data_kwargs={"marker": str(marker)}))
    assert measurement.outcome is Outcome.HOST_OOM
    assert "/dev/shm full" in measurement.evidence.reason
