"""The workload, the machine and the settings of a search."""

from __future__ import annotations

from dataclasses import dataclass

from autofit.records.description import Description
from autofit.records.trial import Limits, Trial


@dataclass(frozen=True)
class SearchContext:
    """The workload, the machine and the settings of one search, made once and shared by all its models.

    `FrontierSampler` explains the settings. AUTOTUNE counts as one thread for each of the `cores`. If `on_cpu`, the train
    step takes host memory and cores.
    """

    description: Description
    limits: Limits
    cores: int
    on_cpu: bool
    tolerance: float = 0.02
    headroom: float = 0.03
    max_oom: int = 2
    warm_start: tuple[Trial, ...] = ()
