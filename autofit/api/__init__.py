"""The public functions: tune, sweep, measure and estimate; and what the commands need for files."""

from __future__ import annotations

from autofit.api.check import check_file
from autofit.api.config.load import load
from autofit.api.estimate import BATCH_SIZES, estimate, estimate_of
from autofit.api.measure import measure
from autofit.api.sweep import sweep, sweep_file
from autofit.api.tune import tune

__all__ = [
    "BATCH_SIZES",
    "check_file",
    "estimate",
    "estimate_of",
    "load",
    "measure",
    "sweep",
    "sweep_file",
    "tune",
]
