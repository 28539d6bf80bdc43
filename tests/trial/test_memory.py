"""Memory by phase, and estimates against what is measured: real models in real processes."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autofit.backends.tensorflow.step_footprint import LIVENESS, XLA
from autofit.records.states import Outcome, Phase
from autofit.records.trial import FitConfig
from autofit.search.memory import host_bytes_by_part
from autofit.trial import launcher
from autofit.trial.launcher import ProcessLauncher
from autofit.workload.workload import Workload
from tests import programs
from tests import workloads as w

GIB = 2**30
SIZES = (16, 64, 256)


@pytest.fixture(scope="module")
def on_kernels():
    """A warm server with TensorFlow's own kernels, and one with oneDNN's; each test gives them workloads of its own."""
    servers = {}
    with contextlib.ExitStack() as running:

        def on_kernels(build_model=w.build_model, data=w.Cases, *, onednn=True, **kwargs):
            workload = Workload(build_model, data, **kwargs)
            if onednn not in servers:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setenv("TF_ENABLE_ONEDNN_OPTS", str(int(onednn)))
                    servers[onednn] = running.enter_context(ProcessLauncher(workload))
            servers[onednn].change(workload)
            return servers[onednn]

        yield on_kernels


@pytest.fixture
def estimated(on_kernels, play):
    """The footprints of a model of `tests.workloads`, by batch size."""

    def estimated(build_model, *, onednn=True, **kwargs):
        server = on_kernels(build_model, onednn=onednn, model_kwargs=kwargs)
        described = play(server, role="describe", device_bytes=GIB, batch_sizes=SIZES, compile_all=True)
        return {f.batch_size: f for f in described.footprints}

    return estimated


def is_about(estimated, measured):
    """Whether an estimate is near enough to show that nothing is left out or counted twice.

    How near estimates are is a figure of `tests/benchmarks/memory.py`: peaks move with the operations that threads overlap.
    """
    return 0.4 < estimated / measured < 1.6


with_and_without_onednn = pytest.mark.parametrize("onednn", [False, True], ids=["without-oneDNN", "with-oneDNN"])


def test_every_phase_has_its_peak_and_the_highest_is_the_peak(on_kernels, play):
    measurement = play(on_kernels(), FitConfig(128, 2, 4, False), device_bytes=GIB)
    device, host = measurement.device_peak_bytes_by_phase, measurement.host_peak_bytes_by_phase
    assert {"building", "first_step", "compute_alone", Phase.INPUT_ALONE, "training"} <= set(device)
    assert measurement.device_peak_bytes == max(size for phase, size in device.items() if phase != Phase.INPUT_ALONE)
    assert device["building"] < device["first_step"]
    assert measurement.host_peak_bytes == max(size for phase, size in host.items() if phase != Phase.INPUT_ALONE)
    assert measurement.driver_peak_bytes is None
    assert 0 < measurement.queued_batches <= 4 + 4


def test_the_peak_of_validation_is_told_apart(on_kernels, play):
    measurement = play(on_kernels(validation=w.Cases), FitConfig(64, 1, 10, False), role="confirm", device_bytes=GIB)
    peaks = measurement.device_peak_bytes_by_phase
    assert 0 < peaks["validation"] < peaks["first_epoch"]


def test_an_estimate_that_takes_long_costs_neither_the_description_nor_what_is_estimated(on_kernels, play, monkeypatch):
    monkeypatch.setattr(launcher, "_ESTIMATE_SECONDS", 8.0)  # far more than the walks take
    described = play(on_kernels(w.build_slow_to_compile), role="describe", batch_sizes=SIZES)
    assert described.jit_compile
    assert [(f.batch_size, f.method) for f in described.footprints] == [(size, LIVENESS) for size in SIZES]


@pytest.mark.slow
@with_and_without_onednn
@pytest.mark.parametrize(("kwargs", "method"), [({}, LIVENESS), ({"xla": True}, XLA)])
def test_what_is_estimated_is_about_what_is_measured(estimated, on_kernels, play, onednn, kwargs, method):
    footprint = estimated(w.build_model, onednn=onednn, **kwargs)[256]
    measurement = play(on_kernels(onednn=onednn, model_kwargs=kwargs), FitConfig(256, 1, 10, False), device_bytes=GIB)
    assert measurement.outcome is Outcome.OK
    assert footprint.method == method
    assert is_about(footprint.device_bytes, measurement.device_peak_bytes)


@pytest.mark.slow
@with_and_without_onednn
@pytest.mark.parametrize("kind", ["attention", "recurrent", "eager"])
def test_the_estimate_holds_for_steps_of_every_kind(kind, on_kernels, play, onednn):
    launcher = on_kernels(programs.build_for_sequences, programs.sequences, onednn=onednn, model_kwargs={"kind": kind})
    described = play(launcher, FitConfig(128), role="describe", device_bytes=4 * GIB, batch_sizes=(128,))
    measurement = play(launcher, FitConfig(128), device_bytes=4 * GIB)
    assert is_about(described.footprints[0].device_bytes, measurement.device_peak_bytes)


@pytest.mark.slow
def test_arrays_take_what_plain_fit_takes_in_every_phase(on_kernels, play):
    command = [sys.executable, "-c", "from tests import programs; print(*programs.plain_peaks())"]
    environment = {**os.environ, "TF_CPU_ALLOCATOR_USE_BFC": "1"}  # the allocator that a limit asks for
    root = Path(__file__).parents[2]
    plain = subprocess.run(command, check=True, cwd=root, env=environment, capture_output=True, timeout=800)
    host, device = (int(size) for size in plain.stdout.split())
    config, limits = FitConfig(16), {"device_bytes": 4 * GIB}
    launcher = on_kernels(programs.build_for_pictures, programs.pictures, validation=programs.few_pictures)
    described = play(launcher, config, role="describe", batch_sizes=(16,), **limits)
    footprint = described.footprints[0]
    # one more copy of the pictures is a quarter of the host's memory; all that moves is smaller than a batch
    assert sum(host_bytes_by_part(described, config, footprint.step_bytes).values()) == pytest.approx(host, rel=0.2)
    assert footprint.device_bytes == pytest.approx(device, rel=0.2)
    for role in ("measure", "confirm"):
        measurement = play(launcher, config, role=role, **limits)
        assert measurement.host_peak_bytes == pytest.approx(host, rel=0.2), role
        assert measurement.device_peak_bytes == pytest.approx(device, rel=0.2), role


@with_and_without_onednn
def test_the_description_knows_whether_onednn_is_in_use(on_kernels, play, onednn):
    described = play(on_kernels(onednn=onednn), role="describe")
    assert described.versions["oneDNN"] == ("on" if onednn else "off")


def test_kernels_of_onednn_gather_no_patches(estimated):
    own, onednn = (
        estimated(w.build_model, onednn=onednn)[256].device_bytes_by_part["temporaries"] for onednn in (False, True)
    )
    assert own > onednn


def test_an_activation_in_a_layer_of_its_own_changes_nothing(estimated):
    within, apart = estimated(w.build_model), estimated(w.build_model, apart=True)
    assert [f.device_bytes for f in apart.values()] == [f.device_bytes for f in within.values()]
    assert list(within) == list(SIZES)


def test_the_bodies_of_loops_are_entered(estimated):
    short, long = estimated(w.build_recurrent, steps=8)[256], estimated(w.build_recurrent, steps=32)[256]
    state = 256 * 32 * 4  # bytes of one of the tensors that each step keeps for the backward pass
    kept = long.device_bytes_by_part["activations"] - short.device_bytes_by_part["activations"]
    assert kept > 5 * 24 * state


def test_a_model_for_one_batch_size_is_estimated_for_that_size_alone_and_it_is_said_why(on_kernels, play):
    described = play(on_kernels(w.build_for_one_size), role="describe", batch_sizes=SIZES)
    assert [footprint.batch_size for footprint in described.footprints] == [8]
    assert described.fixed_batch_size == 8
    assert "batches of 8" in described.untuned["batch_size"]


def test_a_model_that_is_built_for_each_batch_size_is_tuned_but_estimated_for_one_size(on_kernels, play):
    described = play(on_kernels(w.build_for_batches), role="describe", batch_sizes=SIZES)
    assert described.fixed_batch_size is None
    assert described.model_takes_batch
    assert len(described.footprints) == 1


ON_A_GPU = """
from autofit.backends.protocol import TrainStep
from autofit.backends.tensorflow.step_footprint import StepFootprint
from tests import workloads as w
import numpy as np

batch = np.zeros((8, w.PIXELS, w.PIXELS, 3), "float32"), np.zeros((8, 1), "float32")
sizes = []
for data in ([], [200 * 2**20]):
    step = TrainStep(w.build_model(), batch, "a GPU", data_tensors=data)
    footprint = StepFootprint(step, onednn=False, threads=1)
    sizes.append(next(iter(footprint.estimates([8], compile_all=False))).device_bytes)
print(sizes[1] - sizes[0])
"""


def test_arrays_that_fit_copies_to_a_gpu_count_there():
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", ON_A_GPU], capture_output=True, text=True, timeout=280, check=True, cwd=root
    )
    assert int(done.stdout.splitlines()[-1]) == 200 * 2**20
