"""The public functions: tune, sweep, measure and estimate; and what the commands need for files."""

from __future__ import annotations

from autofit.api.check import check_file as check_file
from autofit.api.measure import BATCH_SIZES as BATCH_SIZES
from autofit.api.measure import estimate as estimate
from autofit.api.measure import measure as measure
from autofit.api.sweep import sweep as sweep
from autofit.api.sweep import sweep_cells as sweep_cells
from autofit.api.tune import tune as tune
