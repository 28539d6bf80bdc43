"""What a search and its models know before the first trial."""

from __future__ import annotations

from dataclasses import dataclass

from autofit.records.description import Description
from autofit.records.trial import Limits, Trial


@dataclass(frozen=True)
class SearchContext:
    """The workload, the machine and the settings of one search, made once and shared by all its models.

    Args:
        description: the workload.
        limits: the memory limits of the trials.
        cores: CPU cores; AUTOTUNE counts as one thread per core.
        on_cpu: whether the train step itself takes host memory and CPU cores.
        tolerance: relative gain below which configs count as equally fast (0.02 is 2 %).
        headroom: share of each limit that the upper bound of a predicted memory must leave free.
        max_oom: number of OOMs after which nothing larger than the finished trials is proposed.
        expected_training_seconds: training time with the fastest config so far; None if any trial pays off.
        warm_start: trials of an earlier tune of the same workload under other limits or versions.
    """

    description: Description
    limits: Limits
    cores: int
    on_cpu: bool
    tolerance: float = 0.02
    headroom: float = 0.03
    max_oom: int = 2
    expected_training_seconds: float | None = None
    warm_start: tuple[Trial, ...] = ()
