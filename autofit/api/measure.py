"""`measure`: run single configurations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autofit.api.requests import parse
from autofit.api.session import run
from autofit.errors import UsageError
from autofit.records.trial import FitConfig, Trial
from autofit.report.console.progress import Progress
from autofit.tuning.measure import measure as run_measure
from autofit.tuning.settings import DEFAULTS
from autofit.workload.reference import Reference


def measure(
    build_model: Callable[..., Any] | Reference,
    data: Any,
    configs: Sequence[FitConfig],
    *,
    model_kwargs: Mapping[str, Any] | None = None,
    data_kwargs: Mapping[str, Any] | None = None,
    fit_kwargs: Mapping[str, Any] | None = None,
    dtype_policy: str | None = None,
    jit_compile: bool | None = None,
    backend: str | None = None,
    device: str = DEFAULTS.device,
    devices: int | Sequence[int] | None = None,
    distribution: str | None = None,
    device_memory: str | int = DEFAULTS.device_memory,
    host_memory: str | int = DEFAULTS.host_memory,
    max_trial_seconds: float = DEFAULTS.max_trial_seconds,
    launch: str = DEFAULTS.launch,
    wait: bool = True,
    progress: bool | Progress = True,
) -> tuple[Trial, ...]:
    """Measure the throughput and the memory of given configurations, each in a process of its own.

    Nothing is searched, confirmed or stored.

    Args:
        build_model: function called as `build_model(**model_kwargs)`; returns a compiled `keras.Model`.
        data: as for `tune`.
        configs: configurations to measure, in this order.
        model_kwargs: arguments of `build_model`.
        data_kwargs: arguments of the data factory other than the knobs.
        fit_kwargs: as for `tune`.
        dtype_policy: as for `tune`.
        jit_compile: as for `tune`.
        backend: as for `tune`.
        device: as for `tune`.
        devices: as for `tune`.
        distribution: as for `tune`.
        device_memory: as for `tune`.
        host_memory: as for `tune`.
        max_trial_seconds: most seconds for a trial; a longer one is stopped and recorded as a timeout.
        launch: as for `tune`.
        wait: whether to wait for another autofit that measures on the device; otherwise that is an error.
        progress: whether to show progress, or a `Progress` to show it on.

    Returns:
        A trial for each configuration: its outcome, the rates of `fit`, of the train step alone and of the input pipeline
        alone (samples per second), and its peaks of device and host memory (bytes).

    Raises:
        UsageError: an argument is wrong.
        DeviceBusyError: the calling process itself holds the GPU.
        DeviceLockedError: another autofit measures on the device, and `wait` is off.
        UserCodeError: the model or data code raised; the message contains its traceback.
        TrialProcessError: a process could not be started.
    """
    arguments = {name: value for name, value in locals().items() if name not in ("configs", "wait", "progress")}
    if not configs or not all(isinstance(config, FitConfig) for config in configs):
        raise UsageError(f"{configs!r} is not allowed; give one or more autofit.FitConfig", key="configs")
    workload, settings = parse(arguments)
    return run(functools.partial(run_measure, configs=configs), workload, settings, progress, wait=wait)
