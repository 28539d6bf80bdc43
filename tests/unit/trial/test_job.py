"""The peaks of a trial, phase by phase."""

import pytest

from autofit.records.machine import ON_CPU, Device, Placement
from autofit.records.states import FailureKind, Phase
from autofit.trial.wire import MESSAGES, Failure, Message, encode
from autofit.trial.worker import data_workers, job
from autofit.trial.worker.job import DevicePeaks

GPU = Placement.on(Device(0, "NVIDIA T4", "GPU-1", 2**34, 2**34))


class Allocator:
    """A backend that counts what the test sets."""

    def __init__(self):
        self.peak = 0

    def peak_bytes(self, placement):
        return self.peak

    def reset_peak(self, placement):
        self.peak = 0


def peaks_of(placement, phases):
    allocator = Allocator()
    peaks = DevicePeaks(allocator, placement)
    for phase, peak in phases:
        peaks.enter(phase)
        allocator.peak = peak
    return peaks


@pytest.mark.parametrize(("placement", "highest"), [(GPU, 30), (ON_CPU, 500)])
def test_what_a_gpu_tries_in_its_first_step_does_not_count_for_training(placement, highest):
    phases = [(Phase.BUILDING, 10), (Phase.FIRST_STEP, 500), (Phase.COMPUTE_ALONE, 30), (Phase.TRAINING, 20)]
    peaks = peaks_of(placement, phases)
    assert peaks.highest() == highest
    assert peaks.by_phase[Phase.FIRST_STEP] == 500


def test_a_trial_that_ended_in_its_first_step_has_its_peak():
    assert peaks_of(GPU, [(Phase.BUILDING, 10), (Phase.FIRST_STEP, 500)]).highest() == 500


@pytest.mark.parametrize(("phases", "highest"), [([], 400), ([(Phase.VALIDATION, 40)], 40)])
def test_what_a_gpu_tries_in_its_first_validation_step_counts_only_if_there_is_no_other(phases, highest):
    phases = [(Phase.BUILDING, 10), (Phase.FIRST_EPOCH, 30), (Phase.FIRST_VALIDATION, 400), *phases, (Phase.TRAINING, 20)]
    assert peaks_of(GPU, phases).highest() == highest
    assert peaks_of(ON_CPU, phases).highest() == 400


def test_an_allocator_that_counted_nothing_has_no_peak():
    assert peaks_of(ON_CPU, [(Phase.BUILDING, 0), (Phase.FIRST_STEP, 0)]).highest() is None


def test_an_error_of_any_length_is_kept_in_part():
    try:
        raise ValueError("x" * 10**7 + "the end")
    except ValueError as error:
        text = job.user_traceback(error)
    assert len(text) < 21_000
    assert text.startswith("Traceback")
    assert text.rstrip().endswith("the end")


def test_an_error_whose_text_has_a_lone_surrogate_can_be_sent():
    line = encode(Message(failure=job.user_failure(ValueError("the name \ud800"))))
    assert MESSAGES.validate_json(line).failure.reason == "ValueError: the name ?"
    assert encode(Message(failure=Failure(FailureKind.DEVICE_OOM, job.first_line(RuntimeError("out of \ud800")))))


class UnprintableError(RuntimeError):
    """An error whose text raises another one."""

    def __str__(self):
        raise ValueError("no text")


def test_an_error_without_a_text_is_told_by_its_type_and_place():
    with pytest.raises(UnprintableError) as caught:
        raise UnprintableError
    failure = job.user_failure(caught.value)
    assert data_workers.of_loader(caught.value) is None
    assert job.first_line(caught.value).startswith("UnprintableError")
    assert "UnprintableError" in failure.reason
    assert "raise UnprintableError" in failure.traceback
