"""The crash matrix on every backend: what happens in a trial's process, and what it is taken for."""

import keras
import pytest

from autofit.errors import UsageError
from autofit.records.states import Outcome
from autofit.records.trial import FitConfig
from tests import workloads as w
from tests.backends import loaders

INLINE, THREADS, PROCESSES = (1, 10, False), (2, 2, False), (2, 2, True)
GIB = 2**30


@pytest.mark.parametrize(
    ("case", "knobs", "outcome", "reason"),
    [
        (w.OK, INLINE, Outcome.OK, "finished"),
        (w.OK, THREADS, Outcome.OK, "finished"),
        (w.OK, PROCESSES, Outcome.OK, "finished"),
        (w.RAISES, INLINE, Outcome.ERROR, "ValueError: the fifth picture is broken"),
        (w.RAISES, PROCESSES, Outcome.ERROR, "ValueError: the fifth picture is broken"),
        (w.KILLED, THREADS, Outcome.CRASHED, "died by SIGKILL"),
        (w.SEGFAULTS, PROCESSES, Outcome.CRASHED, "died by SIGSEGV"),
        (w.EXITS, THREADS, Outcome.CRASHED, "exited with status 3"),
        (w.MEMORY_ERROR, THREADS, Outcome.HOST_OOM, "Unable to allocate 1.00 PiB"),
    ],
)
def test_the_outcome_is_what_happened(launched, play, case, knobs, outcome, reason):
    measurement = play(launched(), FitConfig(case, *knobs))
    assert (measurement.outcome, reason in measurement.evidence.reason) == (outcome, True), measurement.evidence
    assert (measurement.samples_per_second is not None) == (outcome is Outcome.OK)


@pytest.mark.quiet
@pytest.mark.parametrize("knobs", [INLINE, PROCESSES])
def test_a_hang_is_noticed_long_before_its_deadline(launched, play, knobs):
    launcher = launched()
    assert play(launcher, FitConfig(w.OK, *INLINE)).outcome is Outcome.OK
    measurement = play(launcher, FitConfig(w.HANGS, *knobs), seconds=60)
    assert measurement.outcome is Outcome.TIMEOUT
    assert measurement.seconds < 30


@pytest.mark.quiet
def test_the_watcher_ends_a_tree_just_over_the_host_limit(launched, play):
    limit = int(1.5 * GIB)
    measurement = play(launched(), FitConfig(w.FILLS_HOST, *PROCESSES), host_bytes=limit)
    assert measurement.outcome is Outcome.HOST_OOM
    assert "ended by the watcher" in measurement.evidence.reason
    assert limit < measurement.evidence.last_host_bytes < 1.15 * limit


def too_large():
    """A model with more weights than any machine has room for."""
    layers = keras.layers
    pictures = layers.Input((w.PIXELS, w.PIXELS, 3))
    model = keras.Sequential([pictures, layers.GlobalAveragePooling2D(), layers.Dense(2**44)])
    model.compile("sgd", "mse")
    return model


def test_what_the_backend_cannot_allocate_on_a_cpu_is_the_hosts(launched, play):
    measurement = play(launched(too_large), FitConfig(8, *INLINE))
    assert measurement.outcome is Outcome.HOST_OOM, measurement.evidence


def test_the_users_bugs_are_the_users_own(launched, play):
    measurement = play(launched(model_kwargs={"fail": True}), FitConfig(8, *INLINE))
    assert measurement.outcome is Outcome.ERROR
    assert measurement.evidence.reason == "RuntimeError: the model cannot be built"
    assert "autofit/" not in measurement.traceback


@pytest.mark.parametrize(
    ("case", "outcome", "reason"),
    [
        (None, Outcome.OK, "finished"),
        (w.RAISES, Outcome.ERROR, "ValueError: the fifth picture is broken"),
        (w.KILLED, Outcome.CRASHED, "a worker process "),  # … is killed, or died before it had handed over a batch
        (w.EXITS, Outcome.CRASHED, "a worker process "),
    ],
)
def test_the_workers_of_a_loader_are_told_apart_from_the_training(launched, play, case, outcome, reason):
    config = FitConfig(8, workers=2, use_multiprocessing=True, prefetch_factor=2)
    measurement = play(launched(data=loaders.loader, data_kwargs={"case": case}), config)
    assert (measurement.outcome, reason in measurement.evidence.reason) == (outcome, True), measurement.evidence


def test_a_loader_that_did_not_take_over_its_knobs_is_said(launched, play):
    with pytest.raises(UsageError, match="was given num_workers=2 but has num_workers=0"):
        play(launched(data=loaders.forgets_its_workers), FitConfig(8, 2, None, True, 2))
