"""`measure`: run given configurations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from autofit.api.requests import arguments_of, parse
from autofit.api.session import run
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
    model_kwargs: Mapping[str, Any] = {},
    data_kwargs: Mapping[str, Any] = {},
    fit_kwargs: Mapping[str, Any] = {},
    dtype_policy: str | None = None,
    jit_compile: bool | None = None,
    backend: Literal["tensorflow", "jax", "torch"] | None = None,
    call: Literal["fit", "predict", "evaluate"] = "fit",
    device: str = "auto",
    device_memory: str | int = "90%",
    host_memory: str | int = "80%",
    options: Mapping[str, Any] = {},
    distribution: Literal["data_parallel"] | None = None,
    progress: bool | Progress = True,
) -> tuple[Trial, ...]:
    """Measure the throughput and the memory of given configurations, each in its own process.

    Nothing is searched, confirmed or stored. The arguments that are not listed here are those of `tune`.

    Args:
        configs: configurations to measure, in this order.

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
    if not configs or not all(isinstance(config, FitConfig) for config in configs):
        raise UsageError(f"{configs!r} is not allowed; give a list of one or more autofit.FitConfig objects", key="configs")
    workload, settings = parse(arguments_of(locals()))
    return run(functools.partial(run_measure, configs=configs), workload, settings, progress)
