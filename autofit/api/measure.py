"""`measure` runs given configurations, `estimate` predicts memory without training.

Neither stores anything.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from autofit import backends
from autofit.api.result import Estimate
from autofit.api.session import explain_calls, parse, run
from autofit.backends import absent_gpu
from autofit.errors import UsageError
from autofit.records.knobs import FitConfig
from autofit.records.trial import Trial
from autofit.report.console.progress import Progress
from autofit.tuning.estimate import estimate as run_estimate
from autofit.tuning.runner import measure as run_measure
from autofit.tuning.settings import TuneSettings
from autofit.workload.fit_options import FIT

# the batch sizes for which `estimate` estimates memory by default, in samples
BATCH_SIZES = (1, 8, 32, 128, 512)


@explain_calls
def measure(
    build_model: Callable[..., Any],
    data: Any,
    configs: Sequence[FitConfig],
    *,
    progress: bool | Progress = True,
    **arguments: Any,
) -> tuple[Trial, ...]:
    """Measure the throughput and the memory of given configurations, each in its own process.

    Args:
        configs: configurations to measure, in this order.
        arguments: further arguments of `tune`; those of the search have no effect.

    Returns:
        A trial for each configuration: its outcome; the rates of `fit`, of the train step alone and
            of the input pipeline
        alone, in samples per second; and the peaks of device and host memory, in bytes.

    Raises:
        UsageError, DeviceBusyError, UserCodeError, TrialProcessError: as for `tune`.

    Example:
        >>> configs = [autofit.FitConfig(32), autofit.FitConfig(256)]
        >>> trials = autofit.measure(build_model, arrays, configs, progress=False)
        >>> [(trial.config.batch_size, trial.measurement.outcome.value) for trial in trials]
        [(32, 'ok'), (256, 'ok')]
    """
    workload, settings = parse({"build_model": build_model, "data": data, **arguments})
    if not configs or not all(isinstance(config, FitConfig) for config in configs):
        raise UsageError(
            f"{configs!r} is not allowed; give a list of one or more autofit.FitConfig objects",
            key="configs",
        )
    return run(
        functools.partial(run_measure, configs=configs), workload, settings, progress
    )


@explain_calls
def estimate(
    build_model: Callable[..., Any] | None = None,
    data: Any = None,
    *,
    batch_size: int | Sequence[int] | None = None,
    gpu: str | Sequence[str] = (),
    progress: bool | Progress = True,
    **arguments: Any,
) -> Estimate:
    """Estimate the device and host memory that training needs, for each batch size and by part.

    A separate process builds the model and traces the train step; nothing is trained.

    With `gpu`, the estimate is for GPUs that need not be there: XLA compiles the step for each of
    them (JAX, and TensorFlow where Keras compiles with XLA), or the tensors of a step are counted.
    The limit is then what the backend takes of that GPU by default, and `device` and
    `device_memory` do not apply.

    Args:
        batch_size: batch sizes for which to estimate memory, in samples; by default 1, 8, 32, 128
            and 512, or only what is needed to find the largest batch that fits if `gpu` is given.
        gpu: names of GPUs, such as "A100-40GB", or "all" for every GPU that autofit knows. Of
            several that share a batch, each takes the memory of its share.
        arguments: further arguments of `tune`, or those of `tune_script`; those of the search have
            no effect. Host memory depends on the `workers`, `max_queue_size` and
            `use_multiprocessing` of `baseline`, or else on the defaults of the data factory or
            Keras.

    Returns:
        The estimate: for each batch size the bytes of device and host memory by part, and the
            largest batch size that is
        expected to fit the limits.

    Raises:
        NoTrialFinishedError: the model or the data could not be built, or the train step could not
            be traced.
        UsageError, DeviceBusyError, UserCodeError, TrialProcessError: as for `tune`.

    Example:
        >>> estimate = autofit.estimate(build_model, arrays, batch_size=(32, 64), progress=False)
        >>> [row.batch_size for row in estimate.rows if row.fits]
        [32, 64]
    """
    workload, settings = parse({"build_model": build_model, "data": data, **arguments})
    if workload.call != FIT:
        raise UsageError(
            f"the memory of {workload.call} is not estimated; autofit.measure and autofit "
            "tune measure it",
            key="call",
        )
    gpus = absent_gpu.find([gpu] if isinstance(gpu, str) else gpu)
    if batch_size is None:
        batch_size = () if gpus else BATCH_SIZES
    sizes = (batch_size,) if isinstance(batch_size, int) else tuple(batch_size)
    has_sizes = all(isinstance(size, int) and size >= 1 for size in sizes)
    if not has_sizes or not (sizes or gpus):
        raise UsageError(
            f"{batch_size!r} is not allowed; give one or more whole numbers of at least 1",
            key="batch_size",
        )
    if gpus:
        if backends.named(workload.backend).compiles_for_absent_gpus:
            absent_gpu.require_compiler()
        settings = settings.model_copy(
            update={"device": "cpu", "device_memory": TuneSettings().device_memory}
        )
        workload = replace(workload, distribution=None)
    engine = functools.partial(run_estimate, batch_sizes=sizes, gpus=gpus)
    return Estimate(**vars(run(engine, workload, settings, progress, is_timed=False)))
