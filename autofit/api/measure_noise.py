"""`measure_noise`: the gradient noise scale of a workload."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from autofit.api.config import load
from autofit.api.requests import parse
from autofit.api.session import run
from autofit.errors import UsageError
from autofit.records.noise import STEPS, NoiseScale
from autofit.report.console.progress import Progress
from autofit.tuning.settings import TuneSettings
from autofit.workload.fit_options import FIT
from autofit.workload.workload import Workload


def measure_noise(
    build_model: Callable[..., Any],
    data: Any,
    *,
    model_kwargs: Mapping[str, Any] = {},
    data_kwargs: Mapping[str, Any] = {},
    fit_kwargs: Mapping[str, Any] = {},
    dtype_policy: str | None = None,
    jit_compile: bool | None = None,
    backend: Literal["tensorflow", "jax", "torch"] | None = None,
    device: str = "auto",
    device_memory: str | int = "90%",
    host_memory: str | int = "80%",
    launch: Literal["auto", "fork", "plain"] = "auto",
    at_steps: Sequence[int] = STEPS,
    weights: str | os.PathLike[str] | None = None,
    batch_size: int | None = None,
    seconds: float = 120.0,
    wait: bool = True,
    progress: bool | Progress = True,
) -> NoiseScale:
    """Measure the gradient noise scale: the batch size beyond which each further sample helps less.

    A trial trains with the baseline's configuration, and at each of `at_steps` runs many batches without changing the
    weights. Nothing is stored. Early scales are low: they rise while a model trains.

    The arguments that are not listed here are those of `tune`.

    Args:
        build_model: as for `tune`.
        data: as for `tune`.
        at_steps: numbers of updates of the weights after which to measure, in ascending order; later ones are left out if
            `seconds` do not suffice.
        weights: file of weights (`.weights.h5` or `.keras`) at which to measure, instead of training.
        batch_size: number of samples in a microbatch; by default the baseline's, or less if an epoch has few of these.
        seconds: about how long to train and to measure.
        wait: whether to wait while another autofit is measuring on the device; if false, an error is raised.
        progress: whether to show progress, or a `Progress` to show it on.

    Returns:
        The noise scale in samples, with its 95 % interval, or the reason why there is none.

    Raises:
        UsageError: an argument is wrong.
        DeviceBusyError: the calling process itself holds memory of the GPU.
        DeviceLockedError: another autofit is measuring on the device, and `wait` is false.
        UserCodeError: the user's code raised an exception; the message contains its traceback.
        TrialProcessError: a process could not be started.

    Example:
        >>> scale = autofit.measure_noise(build_model, arrays, at_steps=[100], progress=False)
        >>> scale.low is not None or bool(scale.reason)
        True
    """
    workload = Workload(
        build_model,
        data,
        model_kwargs=model_kwargs,
        data_kwargs=data_kwargs,
        fit_kwargs=fit_kwargs,
        dtype_policy=dtype_policy,
        jit_compile=jit_compile,
        backend=backend,
    )
    settings = TuneSettings(device=device, device_memory=device_memory, host_memory=host_memory, launch=launch)
    return _measure(workload, settings, at_steps, weights, batch_size, seconds, progress, wait=wait)


def measure_noise_file(
    path: str | os.PathLike[str],
    *,
    at_steps: Sequence[int] = STEPS,
    weights: str | os.PathLike[str] | None = None,
    batch_size: int | None = None,
    seconds: float = 120.0,
    wait: bool = True,
    progress: bool | Progress = True,
    **overrides: Any,
) -> NoiseScale:
    """Measure the noise scale of the workload that a YAML file describes.

    The arguments that are not listed here are those of `measure_noise`.

    Args:
        path: path of the file.
        overrides: arguments of `tune` that take precedence over the file.

    Returns:
        The noise scale, as from `measure_noise`.

    Raises:
        ConfigError: the file is invalid; the message names file, line, column and key.

    Example:
        >>> autofit.measure_noise_file("tune.yaml", at_steps=[100], progress=False).microbatches > 0
        True
    """
    with load.placing_errors(path, overrides):
        workload, settings = parse({**load.load(path), **overrides})
        return _measure(workload, settings, at_steps, weights, batch_size, seconds, progress, wait=wait)


def _measure(
    workload: Workload,
    settings: TuneSettings,
    at_steps: Sequence[int],
    weights: str | os.PathLike[str] | None,
    batch_size: int | None,
    seconds: float,
    progress: bool | Progress,
    *,
    wait: bool,
) -> NoiseScale:
    steps = list(at_steps)
    if not steps or not all(isinstance(step, int) and step >= 0 for step in steps) or steps != sorted(set(steps)):
        raise UsageError(f"{at_steps!r} is not allowed; give whole numbers in ascending order", key="at_steps")
    if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
        raise UsageError(f"{batch_size!r} is not allowed; give a whole number of at least 1", key="batch_size")
    if not (isinstance(seconds, int | float) and 0 < seconds < math.inf):
        raise UsageError(f"{seconds!r} is not allowed; give a number above 0", key="seconds")
    if workload.call != FIT:
        raise UsageError(f"{workload.call} computes no gradients; remove call", key="call")
    if settings.devices not in (None, 1):
        raise UsageError("the noise scale is measured on one device; remove devices", key="devices")
    path = "" if weights is None else str(Path(weights).resolve())
    if weights is not None and not Path(weights).is_file():
        raise UsageError(f"{weights} does not exist", key="weights")
    from autofit.tuning import noise  # loads Optuna, which takes a second

    measure = functools.partial(
        noise.measure, steps=[0] if path else steps, seconds=seconds, batch_size=batch_size, weights=path
    )
    return run(measure, workload, settings, progress, wait=wait)
