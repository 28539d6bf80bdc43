"""Memory by phase, and estimates against what is measured: real models in real processes."""

import keras
import numpy as np
import pytest

from autofit.backends.tensorflow.step_footprint import LIVENESS, XLA
from autofit.records.states import Outcome, Phase
from autofit.records.trial import FitConfig
from autofit.search.memory import host_bytes_by_part
from autofit.trial import launcher
from autofit.trial.launcher import ProcessLauncher
from autofit.workload.workload import Workload
from tests import workloads as w

GIB = 2**30
SIZES = (16, 64, 256)


@pytest.fixture
def estimated(turn, play):
    """Describe a model of `tests.workloads`: its footprints by batch size."""

    def estimated(build_model=w.build_model, **kwargs):
        launcher = turn(build_model, model_kwargs=kwargs)
        described = play(launcher, role="describe", device_bytes=GIB, batch_sizes=SIZES, compile_all=True)
        return {footprint.batch_size: footprint for footprint in described.footprints}

    return estimated


def is_about(estimated, measured):
    """Whether an estimate is near enough to show that nothing is left out or counted twice.

    How near estimates are is a figure of `tests/benchmarks/memory.py`: peaks move with the operations that threads overlap.
    """
    return 0.4 < estimated / measured < 1.6


def test_every_phase_has_its_peak_and_the_highest_is_the_peak(turn, play):
    measured = play(turn(validation=w.Cases), FitConfig(128, 2, 4, False), role="confirm", device_bytes=GIB)
    assert 0 < measured.device_peak_bytes_by_phase["validation"] < measured.device_peak_bytes_by_phase["first_epoch"]
    measured = play(turn(), FitConfig(128, 2, 4, False), device_bytes=GIB)
    device, host = measured.device_peak_bytes_by_phase, measured.host_peak_bytes_by_phase
    assert {"building", "first_step", "compute_alone", Phase.INPUT_ALONE, "training"} <= set(device)
    assert device["building"] < device["first_step"]
    assert measured.device_peak_bytes == max(size for phase, size in device.items() if phase != Phase.INPUT_ALONE)
    assert measured.host_peak_bytes == max(size for phase, size in host.items() if phase != Phase.INPUT_ALONE)
    assert 0 < measured.queued_batches <= 4 + 4


def test_the_batches_of_a_full_queue_are_held_in_host_memory(turn, play):
    launcher = turn()
    batch = 1000 * 4 * w.PIXELS * w.PIXELS * 3
    short, long = (play(launcher, FitConfig(1000, 2, queue, False)).host_peak_bytes for queue in (2, 32))
    assert long - short > 0.4 * 30 * batch  # a queue counts as full after a pause, which other work may cause, too


def test_an_estimate_that_takes_long_costs_neither_the_description_nor_what_is_estimated(turn, play, monkeypatch):
    monkeypatch.setattr(launcher, "_ESTIMATE_SECONDS", 8.0)  # far more than the walks take
    described = play(turn(w.build_slow_to_compile), role="describe", batch_sizes=SIZES)
    assert described.jit_compile
    assert [(f.batch_size, f.method) for f in described.footprints] == [(size, LIVENESS) for size in SIZES]


@pytest.mark.parametrize(
    ("build_model", "kwargs", "method"),
    [(w.build_model, {}, LIVENESS), (w.build_model, {"xla": True}, XLA), (w.build_recurrent, {}, LIVENESS)],
    ids=["graph", "XLA", "loop"],
)
def test_what_is_estimated_is_about_what_is_measured(estimated, turn, play, build_model, kwargs, method):
    footprint = estimated(build_model, **kwargs)[256]
    measured = play(turn(build_model, model_kwargs=kwargs), FitConfig(256, 1, 10, False), device_bytes=GIB)
    assert measured.outcome is Outcome.OK
    assert footprint.method == method
    assert is_about(footprint.device_bytes, measured.device_peak_bytes)


def build_for_pictures():
    """A model that takes little memory in addition to its data."""
    model = keras.Sequential([keras.Input((256, 256, 1)), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def test_arrays_that_fit_copies_count_in_every_phase(turn, play):
    x = np.ones((512, 256, 256, 1), "float32")
    arrays, config = (x, np.ones((512, 1), "float32")), FitConfig(16)
    launcher = turn(build_for_pictures, arrays, validation=(x[:256], arrays[1][:256]))
    described = play(launcher, config, role="describe", batch_sizes=(16,), device_bytes=4 * GIB)
    (footprint,), copied = described.footprints, 1.5 * x.nbytes
    estimated = sum(host_bytes_by_part(described, config, footprint.step_bytes).values())
    for role in ("measure", "confirm"):
        measured = play(launcher, config, role=role, device_bytes=4 * GIB)
        assert copied < measured.device_peak_bytes
        assert is_about(footprint.device_bytes, measured.device_peak_bytes)
        assert is_about(estimated, measured.host_peak_bytes)


def test_tensorflows_own_kernels_gather_patches_where_onednn_does_not(estimated, play, monkeypatch):
    onednn = estimated()[256].device_bytes_by_part["temporaries"]
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    with ProcessLauncher(Workload(w.build_model, w.Cases)) as own:
        described = play(own, role="describe", device_bytes=GIB, batch_sizes=(256,))
    assert described.versions["oneDNN"] == "off"
    assert described.footprints[0].device_bytes_by_part["temporaries"] > onednn


def test_the_bodies_of_loops_are_entered(estimated):
    short, long = estimated(w.build_recurrent, steps=8)[256], estimated(w.build_recurrent, steps=32)[256]
    state = 256 * 32 * 4  # bytes of one of the tensors that each step keeps for the backward pass
    more = long.device_bytes_by_part["activations"] - short.device_bytes_by_part["activations"]
    assert more > 5 * 24 * state


@pytest.mark.parametrize(("build_model", "fixed"), [(w.build_for_one_size, 8), (w.build_for_batches, None)])
def test_a_model_for_one_batch_size_is_estimated_for_that_size_alone(turn, play, build_model, fixed):
    described = play(turn(build_model), role="describe", batch_sizes=SIZES)
    assert [footprint.batch_size for footprint in described.footprints] == [8]
    assert (described.fixed_batch_size, "batch_size" in described.untuned) == (fixed, fixed is not None)
    assert described.model_takes_batch is (fixed is None)
