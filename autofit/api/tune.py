"""`tune` and `tune_file`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from autofit.api.config import load
from autofit.api.result import Result
from autofit.api.session import parse, run
from autofit.errors import UsageError
from autofit.report.console.progress import Progress
from autofit.tuning import cached
from autofit.tuning.settings import DEFAULTS, TuneSettings
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload


def tune(
    build_model: Callable[..., Any] | Reference,
    data: Any,
    *,
    validation: Any = None,
    model_kwargs: Mapping[str, Any] | None = None,
    data_kwargs: Mapping[str, Any] | None = None,
    validation_kwargs: Mapping[str, Any] | None = None,
    space: Mapping[str, Any] | None = None,
    dtype_policy: str | None = None,
    jit_compile: bool | None = None,
    device: str = DEFAULTS.device,
    device_memory: str | int = DEFAULTS.device_memory,
    host_memory: str | int = DEFAULTS.host_memory,
    max_trials: int = DEFAULTS.max_trials,
    max_seconds: float | None = None,
    max_trial_seconds: float = DEFAULTS.max_trial_seconds,
    tolerance: float = DEFAULTS.tolerance,
    risk: float = DEFAULTS.risk,
    max_oom: int = DEFAULTS.max_oom,
    max_batch_size: int | None = None,
    effective_batch_size: int | None = None,
    sample_count: int | None = None,
    baseline: Mapping[str, Any] | None = None,
    storage: str | None = None,
    fresh: bool = False,
    launch: str = DEFAULTS.launch,
    progress: bool | Progress = True,
) -> Result:
    """Find the fastest `fit` configuration that fits in memory, each try in a process of its own.

    Args:
        build_model: called as `build_model(**model_kwargs)`; returns a compiled `keras.Model`.
        data: arrays `(x, y)` or `(x, y, sample_weight)`, each a nest of arrays if the model has several; or a factory
            called as `data(**data_kwargs, **knobs)` that returns a `keras.utils.PyDataset`, a `tf.data.Dataset`, a
            generator or such arrays; or a ready-made PyDataset whose attribute `batch_size` can be set. The knobs among the
            factory's parameters are the knobs that are tuned; it may call `workers` `num_parallel_calls`, and
            `max_queue_size` `prefetch`.
        validation: like `data`; the longer confirming runs validate on it, so that its memory counts.
        model_kwargs: what `build_model` is given.
        data_kwargs: what the data factory is given beside the knobs; a knob named here is fixed, and not tuned.
        validation_kwargs: the same for validation.
        dtype_policy: Keras's default policy while the model is built, as "mixed_float16"; None leaves it as it is.
        jit_compile: whether XLA compiles the train step, whatever `compile` was told; None leaves it to that.
        space: per knob a tuple (lowest, highest), or a list of values; sensible defaults for those left out.
        device: auto (the first GPU, or the CPU), cpu, gpu, gpu:0, gpu:1, …
        device_memory: what a trial may use of the device: a percentage of what is free on the GPU now, a size ("6GiB") or
            bytes. A CPU has no device memory of its own: there a percentage sets no limit, a size caps the allocator.
        host_memory: what a trial's processes may use of RAM together: a percentage of what the machine or the container
            allows, a size, or bytes.
        max_trials: most trials of the search; describing and confirming come on top.
        max_seconds: most seconds for everything.
        max_trial_seconds: a trial that takes longer is ended, and recorded as a timeout.
        tolerance: among configs whose throughput is within this share of the best, the cheapest is chosen.
        risk: the share of each limit that a config's predicted memory, uncertainty included, may reach.
        max_oom: after so many out-of-memory trials nothing larger than what has run is tried.
        max_batch_size: no larger batch is tried, whatever the space says.
        effective_batch_size: samples of one update of the weights. Only batch sizes that divide it are tried, each with
            gradients accumulated over as many batches as it takes (`gradient_accumulation_steps` of Keras's optimizers).
        sample_count: samples in an epoch, where the data does not say: an endless generator or `tf.data.Dataset`. It
            becomes `steps_per_epoch`.
        baseline: the config to compare with, as knobs; Keras's defaults for those left out.
        storage: Optuna storage URL or path of an SQLite file; a file in the user's data folder otherwise.
        fresh: forget stored trials of the same question.
        launch: fork (a fork of a warm server), plain (an interpreter of its own), or auto.
        progress: whether to show progress, or a `Progress` to show it on.

    Returns:
        The result; `result.data_kwargs` are for the data factory, `result.fit_kwargs` for `fit`,
        `result.optimizer_kwargs` for the optimizer.

    Raises:
        UsageError: the arguments are wrong; nothing was trained.
        DeviceBusyError: the calling process itself holds the GPU.
        UserCodeError: the model or data code raised; the text carries its traceback.
        NothingFitsError: not even the smallest batch fits the limits.
        NoTrialFinishedError: no trial ran to its end, for other reasons than memory.
        TrialProcessError: a process for trials could not be started.
        StorageError: the trials cannot be stored.
        KeyboardInterrupt: passed on, after all processes are ended; finished trials are kept.
    """
    workload, settings = parse(
        {
            "build_model": build_model,
            "data": data,
            "validation": validation,
            "model_kwargs": model_kwargs,
            "data_kwargs": data_kwargs,
            "validation_kwargs": validation_kwargs,
            "space": space,
            "dtype_policy": dtype_policy,
            "jit_compile": jit_compile,
            "device": device,
            "device_memory": device_memory,
            "host_memory": host_memory,
            "max_trials": max_trials,
            "max_seconds": max_seconds,
            "max_trial_seconds": max_trial_seconds,
            "tolerance": tolerance,
            "risk": risk,
            "max_oom": max_oom,
            "max_batch_size": max_batch_size,
            "effective_batch_size": effective_batch_size,
            "sample_count": sample_count,
            "baseline": baseline,
            "storage": storage,
            "launch": launch,
        }
    )
    return _tune(workload, settings, progress, fresh=fresh)


def tune_file(
    path: str | os.PathLike[str], *, fresh: bool = False, progress: bool | Progress = True, **overrides: Any
) -> Result:
    """Tune what a YAML file describes.

    Args:
        path: the file.
        fresh: as for `tune`.
        progress: as for `tune`.
        overrides: arguments of `tune` that take precedence over the file.

    Raises:
        ConfigError: the file contains something that is not allowed; names file, line, column and key.
        AutofitError: as `tune`.
    """
    arguments = load.load(os.fspath(path))
    try:
        return _tune(*parse({**arguments, **overrides}), progress, fresh=fresh)
    except UsageError as error:
        raise load.placed(os.fspath(path), error, overrides) from None


def _tune(workload: Workload, settings: TuneSettings, progress: bool | Progress, *, fresh: bool) -> Result:
    """Tune; where the caller has no `Progress` of its own, the summary of the result ends what is shown."""
    shown = progress if isinstance(progress, Progress) else Progress(quiet=not progress)
    result = Result.of(run(cached.tune, workload, settings, shown, fresh=fresh))
    if shown is not progress and not shown.console.is_jupyter:  # a notebook shows the result itself
        shown.summarise(result)
    return result
