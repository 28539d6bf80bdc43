"""What a program calls."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from autofit import config
from autofit.asking import carry_out
from autofit.errors import UsageError
from autofit.estimation import estimate as run_estimate
from autofit.measurement import measure as run_measure
from autofit.records import FitConfig, Trial
from autofit.report import advice, files, html, snippet
from autofit.report.console import Progress
from autofit.results import Estimate, TuningRecord
from autofit.tuner import tune as run_loop
from autofit.workload import Reference, Workload

BATCH_SIZES = (1, 8, 32, 128, 512)
"""What is estimated when nothing is said."""


@dataclass(frozen=True)
class Result(TuningRecord):
    """The fastest config that fits, its proof, and every trial; see `TuningRecord` for the fields."""

    def snippet(self) -> str:
        """Python lines that train with the chosen config."""
        return snippet.render(self)

    def advice(self) -> dict[str, str]:
        """What the result means, in sentences: the bottleneck, the learning rate, the last batch of an epoch."""
        return advice.advice(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result as JSON; `autofit show` and `autofit kwargs` read it.

        Raises:
            UsageError: the file cannot be written.
        """
        files.save(self, path)

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write the result as one HTML page, which opens from disk and loads nothing.

        Raises:
            UsageError: the file cannot be written.
        """
        html.save(self, path)

    def _repr_html_(self) -> str:
        """What a notebook shows: the answer, its margins, the lines to paste and the trials."""
        return html.compact(self)


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
    device: str = "auto",
    device_memory: str | int = "90%",
    host_memory: str | int = "80%",
    max_trials: int = 12,
    max_seconds: float | None = None,
    max_trial_seconds: float = 180.0,
    tolerance: float = 0.02,
    risk: float = 0.97,
    max_oom: int = 2,
    max_batch_size: int | None = None,
    effective_batch_size: int | None = None,
    sample_count: int | None = None,
    baseline: Mapping[str, Any] | None = None,
    storage: str | None = None,
    fresh: bool = False,
    launch: str = "auto",
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
    workload = Workload(
        build_model,
        data,
        validation,
        model_kwargs or {},
        data_kwargs or {},
        validation_kwargs or {},
        dtype_policy,
        jit_compile,
    )
    record = carry_out(
        run_loop,
        workload,
        progress,
        fresh=fresh,
        space=space,
        device=device,
        device_memory=device_memory,
        host_memory=host_memory,
        max_trials=max_trials,
        max_seconds=max_seconds,
        max_trial_seconds=max_trial_seconds,
        tolerance=tolerance,
        risk=risk,
        max_oom=max_oom,
        max_batch_size=max_batch_size,
        effective_batch_size=effective_batch_size,
        sample_count=sample_count,
        baseline=baseline,
        storage=storage,
        launch=launch,
    )
    return Result(**{field.name: getattr(record, field.name) for field in fields(record)})


def tune_file(path: str | os.PathLike[str], **overrides: Any) -> Result:
    """Tune what a YAML file describes; `overrides` are arguments of `tune` that take precedence.

    Raises:
        ConfigError: the file says something that is not allowed; names file, line and key.
        AutofitError: as `tune`.
    """
    return tune(**{**config.load(os.fspath(path)), **overrides})


def estimate(
    build_model: Callable[..., Any] | Reference,
    data: Any,
    *,
    batch_size: Sequence[int] = BATCH_SIZES,
    model_kwargs: Mapping[str, Any] | None = None,
    data_kwargs: Mapping[str, Any] | None = None,
    dtype_policy: str | None = None,
    jit_compile: bool | None = None,
    device: str = "auto",
    device_memory: str | int = "90%",
    host_memory: str | int = "80%",
    baseline: Mapping[str, Any] | None = None,
    launch: str = "auto",
    progress: bool | Progress = True,
) -> Estimate:
    """Estimate the memory that training will need, by part and batch size; the model is built, nothing is trained.

    Args:
        build_model: called as `build_model(**model_kwargs)`; returns a compiled `keras.Model`.
        data: as for `tune`.
        batch_size: samples a batch, one or more.
        model_kwargs: what `build_model` is given.
        data_kwargs: what the data factory is given beside the knobs.
        dtype_policy: as for `tune`.
        jit_compile: as for `tune`.
        device: as for `tune`.
        device_memory: as for `tune`.
        host_memory: as for `tune`.
        baseline: the other knobs (workers, max_queue_size, use_multiprocessing); Keras's defaults for those left out.
        launch: as for `tune`.
        progress: whether to show progress, or a `Progress` to show it on.

    Returns:
        Bytes by part for device and host memory, a row for each batch size, and the largest batch expected to fit.

    Raises:
        UsageError: the arguments are wrong.
        DeviceBusyError: the calling process itself holds the GPU.
        UserCodeError: the model or data code raised; the text carries its traceback.
        NoTrialFinishedError: the model and data could not be built, or the train step not be traced.
        TrialProcessError: a process could not be started.
    """
    sizes = (batch_size,) if isinstance(batch_size, int) else tuple(batch_size)
    if not sizes or not all(isinstance(b, int) and b >= 1 for b in sizes):
        raise UsageError(f"batch_size: {batch_size!r} is not allowed; give one or more whole numbers from 1 on")
    return carry_out(
        functools.partial(run_estimate, batch_sizes=sizes),
        Workload(
            build_model,
            data,
            model_kwargs=model_kwargs or {},
            data_kwargs=data_kwargs or {},
            dtype_policy=dtype_policy,
            jit_compile=jit_compile,
        ),
        progress,
        device=device,
        device_memory=device_memory,
        host_memory=host_memory,
        baseline=baseline,
        launch=launch,
    )


def measure(
    build_model: Callable[..., Any] | Reference,
    data: Any,
    configs: Sequence[FitConfig],
    *,
    model_kwargs: Mapping[str, Any] | None = None,
    data_kwargs: Mapping[str, Any] | None = None,
    dtype_policy: str | None = None,
    jit_compile: bool | None = None,
    device: str = "auto",
    device_memory: str | int = "90%",
    host_memory: str | int = "80%",
    max_trial_seconds: float = 180.0,
    launch: str = "auto",
    progress: bool | Progress = True,
) -> tuple[Trial, ...]:
    """Try the configs that are named, each in a process of its own; nothing is searched, and nothing is kept.

    Args:
        build_model: called as `build_model(**model_kwargs)`; returns a compiled `keras.Model`.
        data: as for `tune`.
        configs: what to try, in this order.
        model_kwargs: what `build_model` is given.
        data_kwargs: what the data factory is given beside the knobs.
        dtype_policy: as for `tune`.
        jit_compile: as for `tune`.
        device: as for `tune`.
        device_memory: as for `tune`.
        host_memory: as for `tune`.
        max_trial_seconds: a trial that takes longer is ended, and is a timeout.
        launch: as for `tune`.
        progress: whether to show progress, or a `Progress` to show it on.

    Returns:
        A trial for each config: how it ended, its three rates and its peaks.

    Raises:
        UsageError: the arguments are wrong.
        DeviceBusyError: the calling process itself holds the GPU.
        UserCodeError: the model or data code raised; the text carries its traceback.
        TrialProcessError: a process could not be started.
    """
    if not configs or not all(isinstance(config, FitConfig) for config in configs):
        raise UsageError(f"configs: {configs!r} is not allowed; give one or more autofit.FitConfig")
    return carry_out(
        functools.partial(run_measure, configs=configs),
        Workload(
            build_model,
            data,
            model_kwargs=model_kwargs or {},
            data_kwargs=data_kwargs or {},
            dtype_policy=dtype_policy,
            jit_compile=jit_compile,
        ),
        progress,
        device=device,
        device_memory=device_memory,
        host_memory=host_memory,
        max_trial_seconds=max_trial_seconds,
        launch=launch,
    )


def estimate_file(path: str | os.PathLike[str], **overrides: Any) -> Estimate:
    """Estimate what a YAML file describes; `overrides` are arguments of `estimate` that take precedence.

    Raises:
        ConfigError: the file says something that is not allowed; names file, line and key.
        AutofitError: as `estimate`.
    """
    told = config.load(os.fspath(path))
    taken = set(inspect.signature(estimate).parameters)
    return estimate(**{**{key: value for key, value in told.items() if key in taken}, **overrides})
