"""The level of confidence is said once: widths and texts follow it."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from autofit.records import confidence
from autofit.records.intervals import pooled_half_width, welch_interval
from autofit.records.knobs import FitConfig
from autofit.records.trial import noise_of
from autofit.search.frontier import Proposal, Reason
from autofit.tuning import delivery
from tests.fakes import BASELINE

CONFIG, OTHER = FitConfig(8), FitConfig(16)


def predictions(readings, context):
    """Rates of two configs, with a deviation of 10 % each and of their difference."""
    deviations = np.array([0.1, 0.1])
    predicted = SimpleNamespace(
        mean=np.zeros(2),
        deviation=deviations,
        lead_over=lambda index: (np.zeros(2), deviations),
    )
    return SimpleNamespace(predict=lambda configs: predicted)


def figures(monkeypatch):
    monkeypatch.setattr(delivery, "Rates", predictions)
    beliefs = delivery.Beliefs([], [CONFIG, OTHER], SimpleNamespace(cores=1))
    speedup = beliefs.speedup(CONFIG, OTHER)
    proposal = Proposal(
        BASELINE, Reason.PROMISE, 0.0, 0.0, 0.0, gain=0.001, most_gain=0.05
    )
    return {
        "of a mean, in standard errors": pooled_half_width([1.0, 2.0, 3.0])
        * math.sqrt(3),
        "of a difference": welch_interval([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])[1],
        "of a rate": beliefs.rate(CONFIG)[1],
        "of a speedup": (speedup.low, speedup.high),
        "noise": noise_of(0.1),
        "text": str(proposal),
    }


def test_at_95_percent_the_widths_are_those_of_the_textbooks(monkeypatch):
    monkeypatch.setattr(confidence, "LEVEL", 0.95)
    found = figures(monkeypatch)
    assert found["of a mean, in standard errors"] == pytest.approx(4.303, rel=1e-3)
    assert found["of a rate"] == math.expm1(1.96 * 0.1)
    assert found["noise"] == 0.1 / 2
    assert "95%" in found["text"]


def test_another_level_moves_all_widths_and_texts(monkeypatch):
    before = figures(monkeypatch)
    monkeypatch.setattr(confidence, "LEVEL", 0.8)
    after = figures(monkeypatch)
    assert [name for name in before if before[name] == after[name]] == []
    assert after["of a mean, in standard errors"] == pytest.approx(1.886, rel=1e-3)
    assert after["of a rate"] == math.expm1(1.28 * 0.1)
    assert "80%" in after["text"]
