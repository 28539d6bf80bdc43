"""The public functions: tune, sweep, measure, estimate and check."""

from __future__ import annotations

from autofit.api.check import check_file
from autofit.api.estimate import BATCH_SIZES, estimate, estimate_file
from autofit.api.measure import measure
from autofit.api.sweep import sweep, sweep_file
from autofit.api.tune import tune, tune_file

__all__ = ["BATCH_SIZES", "check_file", "estimate", "estimate_file", "measure", "sweep", "sweep_file", "tune", "tune_file"]
