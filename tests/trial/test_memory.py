"""Memory by phase, and estimates against what is measured: real models in real processes."""

import keras
import numpy as np
import pytest

from autofit.backends.tensorflow.step_footprint import LIVENESS, XLA
from autofit.records.knobs import FitConfig
from autofit.records.states import Outcome, Phase
from autofit.search.memory import host_bytes_by_part
from autofit.trial import launcher
from autofit.trial.launcher import ProcessLauncher
from autofit.workload.workload import Workload
from tests import workloads as w
from tests.commands import python

tf = pytest.importorskip("tensorflow")

GIB = 2**30
SIZES = (16, 64, 256)


@pytest.fixture
def estimated(turn, play):
    """Describe a model of `tests.workloads`: its footprints by batch size."""

    def estimated(build_model=w.build_model, **kwargs):
        launcher = turn(build_model, model_kwargs=kwargs)
        described = play(
            launcher,
            role="describe",
            device_bytes=GIB,
            batch_sizes=SIZES,
            compile_all=True,
        )
        return {footprint.batch_size: footprint for footprint in described.footprints}

    return estimated


def test_every_phase_has_its_peak_and_the_highest_is_the_peak(turn, play):
    measured = play(
        turn(validation=w.Cases),
        FitConfig(128, 2, 4, False),
        role="confirm",
        device_bytes=GIB,
    )
    assert (
        0
        < measured.device_peak_bytes_by_phase["validation"]
        < measured.device_peak_bytes_by_phase["first_epoch"]
    )
    measured = play(turn(), FitConfig(128, 2, 4, False), device_bytes=GIB)
    device = measured.device_peak_bytes_by_phase
    host = measured.host_peak_bytes_by_phase
    assert {
        "building",
        "first_step",
        "compute_alone",
        Phase.INPUT_ALONE,
        "training",
    } <= set(device)
    assert device["building"] < device["first_step"]
    assert measured.device_peak_bytes == max(
        size for phase, size in device.items() if phase != Phase.INPUT_ALONE
    )
    assert measured.host_peak_bytes == max(
        size for phase, size in host.items() if phase != Phase.INPUT_ALONE
    )
    assert 0 < measured.queued_batches <= 4 + 4


def test_the_batches_of_a_full_queue_are_held_in_host_memory(turn, play):
    launcher = turn()
    batch = 1000 * 4 * w.PIXELS * w.PIXELS * 3
    short, long = (
        play(launcher, FitConfig(1000, 2, queue, False)) for queue in (2, 32)
    )
    more = (
        long.queued_batches - short.queued_batches
    ) * batch  # fewer on a busy machine, where the queue is not full
    assert long.host_peak_bytes - short.host_peak_bytes > 0.4 * more - 64 * 2**20


def test_an_estimate_that_takes_long_costs_neither_the_description_nor_what_is_estimated(
    turn, play, monkeypatch
):
    monkeypatch.setattr(
        launcher, "_ESTIMATE_SECONDS", 12.0
    )  # far more than the walks take
    described = play(turn(w.build_slow_to_compile), role="describe", batch_sizes=SIZES)
    assert described.jit_compile
    assert [(f.batch_size, f.method) for f in described.footprints] == [
        (size, LIVENESS) for size in SIZES
    ]


def build_after_xla():
    """The network, built by code for which XLA compiles something before."""
    tf.function(lambda: tf.ones(3) * 2, jit_compile=True)()
    return w.build_model(xla=True)


@pytest.mark.parametrize(
    ("build_model", "kwargs", "method"),
    [
        (w.build_model, {}, LIVENESS),
        (w.build_model, {"xla": True}, XLA),
        (build_after_xla, {}, XLA),
        (w.build_recurrent, {}, LIVENESS),
    ],
    ids=["graph", "XLA", "XLA before", "loop"],
)
def test_what_is_estimated_is_about_what_is_measured(
    estimated, turn, play, build_model, kwargs, method
):
    footprint = estimated(build_model, **kwargs)[256]
    measured = play(
        turn(build_model, model_kwargs=kwargs),
        FitConfig(256, 1, 10, False),
        device_bytes=GIB,
    )
    assert measured.outcome is Outcome.OK
    assert footprint.method == method
    # Near enough to show that nothing is left out or counted twice; how near estimates
    # are, benchmarks/memory.py says.
    assert 0.4 < footprint.device_bytes / measured.device_peak_bytes < 1.6


def build_for_pictures():
    """A model that takes little memory in addition to its data."""
    model = keras.Sequential(
        [
            keras.Input((256, 256, 1)),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse")
    return model


def test_arrays_that_fit_copies_count_in_every_phase_and_estimate(turn, play):
    x = np.ones((512, 256, 256, 1), "float32")
    arrays = (x, np.ones((512, 1), "float32"))
    config = FitConfig(16)
    launcher = turn(build_for_pictures, arrays, validation=(x[:256], arrays[1][:256]))
    described = play(
        launcher, config, role="describe", batch_sizes=(16,), device_bytes=4 * GIB
    )
    (footprint,) = described.footprints
    copied = 1.5 * x.nbytes
    estimated = sum(
        host_bytes_by_part(described, config, footprint.step_bytes).values()
    )
    assert copied < min(footprint.device_bytes, estimated)
    for role in ("measure", "confirm"):
        measured = play(launcher, config, role=role, device_bytes=4 * GIB)
        assert copied < min(measured.device_peak_bytes, measured.host_peak_bytes)


def test_tensorflows_own_kernels_gather_patches_where_onednn_does_not(
    play, monkeypatch
):
    temporaries = {}
    for number in "01":
        monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", number)
        with ProcessLauncher(Workload(w.build_model, w.Cases)) as own:
            described = play(own, role="describe", device_bytes=GIB, batch_sizes=(256,))
        temporaries[described.versions["oneDNN"]] = described.footprints[
            0
        ].device_bytes_by_part["temporaries"]
    assert temporaries["off"] > temporaries["on"]


def test_the_bodies_of_loops_are_entered(estimated):
    short = estimated(w.build_recurrent, steps=8)[256]
    long = estimated(w.build_recurrent, steps=32)[256]
    state = (
        256 * 32 * 4
    )  # bytes of one of the tensors that each step keeps for the backward pass
    more = (
        long.device_bytes_by_part["activations"]
        - short.device_bytes_by_part["activations"]
    )
    assert more > 5 * 24 * state


CACHE = """
import tensorflow as tf
from autofit.workload.inputs.tfdata import with_controlled_caches
make = lambda: tf.data.Dataset.range(1500).filter(lambda number: number >= 0).cache()
print(len(list(with_controlled_caches(make).take(2000))), len(list(make().take(2000))))
"""


def test_a_cache_of_unknown_length_is_endless_for_the_training_alone():
    assert python("-c", CACHE).splitlines()[-1] == "2000 1500"
