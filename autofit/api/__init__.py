"""What a program calls."""

from __future__ import annotations

from autofit.api.estimating import BATCH_SIZES, estimate, estimate_file, measure
from autofit.api.sweeps import sweep, sweep_file
from autofit.api.tuning import check_file, tune, tune_file

__all__ = ["BATCH_SIZES", "check_file", "estimate", "estimate_file", "measure", "sweep", "sweep_file", "tune", "tune_file"]
