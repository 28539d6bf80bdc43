"""What a trial's process does (this module loads Keras)."""

from __future__ import annotations

from collections.abc import Callable

from autofit.trial.worker.describe import describe
from autofit.trial.worker.job import TrialContext
from autofit.trial.worker.measure import confirm, measure
from autofit.workload.workload import Workload

ROLES: dict[str, Callable[[TrialContext, Workload], None]] = {"describe": describe, "measure": measure, "confirm": confirm}
