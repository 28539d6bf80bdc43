"""What a trial's process does (this module loads Keras)."""

from __future__ import annotations

from collections.abc import Callable

from autofit.trial.describing import describe
from autofit.trial.job import Job
from autofit.trial.measuring import confirm, measure
from autofit.workload import Workload

ROLES: dict[str, Callable[[Job, Workload], None]] = {"describe": describe, "measure": measure, "confirm": confirm}
