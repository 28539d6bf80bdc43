"""`measure`: run given configurations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from autofit.api.session import parse, run
from autofit.api.signature import explained
from autofit.errors import UsageError
from autofit.records.trial import FitConfig, Trial
from autofit.report.console.progress import Progress
from autofit.tuning.runner import measure as run_measure


@explained
def measure(
    build_model: Callable[..., Any],
    data: Any,
    configs: Sequence[FitConfig],
    *,
    progress: bool | Progress = True,
    **arguments: Any,
) -> tuple[Trial, ...]:
    """Measure the throughput and the memory of given configurations, each in its own process.

    Nothing is searched, confirmed or stored.

    Args:
        configs: configurations to measure, in this order.
        arguments: further arguments of `tune`; those of the search have no effect.

    Returns:
        A trial for each configuration: its outcome; the rates of `fit`, of the train step alone and of the input pipeline
        alone, in samples per second; and the peaks of device and host memory, in bytes.

    Raises:
        UsageError, DeviceBusyError, UserCodeError, TrialProcessError: as for `tune`.

    Example:
        >>> trials = autofit.measure(build_model, arrays, [autofit.FitConfig(32), autofit.FitConfig(256)], progress=False)
        >>> [(trial.config.batch_size, trial.measurement.outcome.value) for trial in trials]
        [(32, 'ok'), (256, 'ok')]
    """
    workload, settings = parse({"build_model": build_model, "data": data, **arguments})
    if not configs or not all(isinstance(config, FitConfig) for config in configs):
        raise UsageError(f"{configs!r} is not allowed; give a list of one or more autofit.FitConfig objects", key="configs")
    return run(functools.partial(run_measure, configs=configs), workload, settings, progress)
