"""Texts whose usual batch fits while the one with the longest does not."""

import pytest

from autofit.records.states import Outcome
from autofit.records.trial import FitConfig
from tests import workloads as w

MIB = 2**20
LIMIT = 48 * MIB


@pytest.fixture(scope="module")
def texts(start, play):
    launcher = start(build_model=w.build_for_texts, data=w.Texts)
    described = play(launcher, FitConfig(32, 1, 10, False), role="describe", batch_sizes=(32, 64))
    assert described.footprints[0].device_bytes > 2 * 32 * w.LONG_TEXT * 64 * 4  # of the longest
    return launcher


def test_a_batch_whose_usual_texts_fit_is_out_of_memory_on_the_longest(texts, play):
    measurement = play(texts, FitConfig(256, 1, 10, False), device_bytes=LIMIT)
    assert measurement.outcome is Outcome.DEVICE_OOM
    assert measurement.evidence.phase == "first_longest"


@pytest.mark.parametrize("role", ["measure", "confirm"])
def test_the_peak_is_that_of_the_longest_and_the_rate_that_of_all(texts, play, role):
    measurement = play(texts, FitConfig(32, 1, 10, False), role=role, device_bytes=LIMIT)
    assert measurement.outcome is Outcome.OK
    by_phase = measurement.device_peak_bytes_by_phase
    assert measurement.device_peak_bytes >= by_phase["longest_batch"] > 2 * by_phase["training"]
