"""The peaks of a trial, phase by phase."""

import importlib.util
import sys
from types import SimpleNamespace

import pytest

from autofit.backends.torch.backend import Torch
from autofit.records.machine import ON_CPU, Device, Placement
from autofit.records.states import Phase
from autofit.trial.worker.job import DevicePeaks, user_failure
from tests.commands import PACKAGE

GPU = Placement.on(Device(0, "NVIDIA T4", "GPU-1", 2**34, 2**34))


def peaks_of(placement, phases):
    """The peaks of a backend that counts what the test says."""
    peak = [0]
    backend = SimpleNamespace(
        peak_bytes=lambda placement: peak[0],
        reset_peak=lambda placement, release: peak.__setitem__(0, 0),
    )
    peaks = DevicePeaks(backend, placement)
    for phase, counted in phases:
        peaks.enter(phase)
        peak[0] = counted
    return peaks


FIRST = (Phase.FIRST_STEP, 500)
LATER = [(Phase.COMPUTE_ALONE, 30), (Phase.TRAINING, 20)]
VALIDATED = [(Phase.FIRST_EPOCH, 30), (Phase.FIRST_VALIDATION, 400)]


@pytest.mark.parametrize(
    ("phases", "on_gpu", "on_cpu"),
    [
        (
            [FIRST, *LATER],
            30,
            500,
        ),  # what a GPU tries in its first step does not count if there are others
        ([FIRST], 500, 500),
        ([*VALIDATED, *LATER], 400, 400),  # nor in its first step of validation
        ([*VALIDATED, (Phase.VALIDATION, 40), *LATER], 40, 400),
    ],
)
def test_the_highest_peak_is_that_of_the_phases_that_count(phases, on_gpu, on_cpu):
    phases = [(Phase.BUILDING, 10), *phases]
    assert [peaks_of(placement, phases).highest() for placement in (GPU, ON_CPU)] == [
        on_gpu,
        on_cpu,
    ]
    assert peaks_of(GPU, phases).by_phase == dict(phases[:-1])  # the last phase goes on
    assert (
        peaks_of(ON_CPU, [(Phase.BUILDING, 0), (Phase.FIRST_STEP, 0)]).highest() is None
    )  # it counted nothing


def test_torch_gives_back_what_a_first_step_tried_and_keeps_what_later_steps_use(
    monkeypatch,
):
    calls = []
    cuda = SimpleNamespace(
        empty_cache=lambda: calls.append("empty"),
        reset_peak_memory_stats=lambda: calls.append("reset"),
        reset_accumulated_memory_stats=lambda: None,
        max_memory_reserved=lambda: 1,
        max_memory_allocated=lambda: 1,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    peaks = DevicePeaks(Torch(), GPU)
    full = Phase.FILLING_QUEUE, Phase.QUEUE_FULL
    for phase in (
        Phase.BUILDING,
        Phase.FIRST_STEP,
        Phase.TRAINING,
        *full,
        Phase.TRAINING,
    ):
        peaks.enter(phase)
    assert calls == ["reset", "empty", "reset", "reset", "reset", "reset"]


def test_code_that_imports_tensorflow_where_there_is_none_ends_in_what_to_do(
    monkeypatch,
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    of_python = ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow")
    of_keras = ImportError("This requires the tensorflow module.")
    of_keras.__context__ = of_python
    outer = RuntimeError("no data")
    outer.__cause__ = of_keras
    for error in (of_python, of_keras, outer):
        failure = user_failure(error)
        assert str(error) in failure.traceback
        assert failure.reason.startswith("TensorFlow is not installed: ")
    assert user_failure(ModuleNotFoundError("No module named 'cv2'")).reason.endswith(
        "'cv2'"
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    missing = ModuleNotFoundError("No module named 'tensorflow_text'")
    assert user_failure(missing).reason.endswith("'tensorflow_text'")


def test_the_reason_of_an_error_of_tensorflow_is_what_happened_and_not_the_operation():
    error = RuntimeError(
        "Graph execution error:\n\nIncompatible shapes: [1] vs. [2]\n\t [[{{node x}}]] [Op:y]"
    )
    assert user_failure(error).reason == "Incompatible shapes: [1] vs. [2]"


def test_where_an_operation_was_traced_is_shown_without_frames_of_ours():
    traced = (
        '  File "<string>", line 1, in <module>\n\n'
        f'  File "{PACKAGE}trial/worker/bench.py", line 152, in run\n\n'
        '  File "/home/me/autofit_models/net.py", line 7, in call\n\n'
    )
    error = RuntimeError(
        f"Detected at node x defined at (most recent call last):\n{traced}no"
    )
    text = user_failure(error).traceback
    assert "<string>" not in text
    assert PACKAGE not in text
    assert (
        'last):\n  File "/home/me/autofit_models/net.py", line 7, in call\n\nno\n'
        in text
    )
