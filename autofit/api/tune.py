"""`tune` and `tune_file`: find the fastest configuration of `fit` that fits in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autofit.api.config import load
from autofit.api.requests import parse
from autofit.api.result import Result
from autofit.api.session import progress_of, run_tune
from autofit.report.console.progress import Progress
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
    fit_kwargs: Mapping[str, Any] | None = None,
    space: Mapping[str, Any] | None = None,
    dtype_policy: str | None = None,
    jit_compile: bool | None = None,
    backend: str | None = None,
    device: str = DEFAULTS.device,
    devices: int | Sequence[int] | None = None,
    distribution: str | None = None,
    device_memory: str | int = DEFAULTS.device_memory,
    host_memory: str | int = DEFAULTS.host_memory,
    max_trials: int = DEFAULTS.max_trials,
    max_seconds: float | None = None,
    max_trial_seconds: float = DEFAULTS.max_trial_seconds,
    tolerance: float = DEFAULTS.tolerance,
    headroom: float = DEFAULTS.headroom,
    max_oom: int = DEFAULTS.max_oom,
    max_batch_size: int | None = None,
    effective_batch_size: int | None = None,
    sample_count: int | None = None,
    expected_training_seconds: float | None = None,
    min_updates: int = DEFAULTS.min_updates,
    baseline: Mapping[str, Any] | None = None,
    storage: str | None = None,
    fresh: bool = False,
    launch: str = DEFAULTS.launch,
    wait: bool = True,
    progress: bool | Progress = True,
) -> Result:
    """Find the fastest configuration of `fit` that fits in memory.

    Each trial trains for a few seconds in a process of its own. The best configuration is confirmed in longer runs, in turn
    with the baseline. Trials and results are stored: an interrupted tune resumes, and a repeated one returns at once.

    Args:
        build_model: function called as `build_model(**model_kwargs)`; returns a compiled `keras.Model`.
        data: arrays as `fit` takes them, `x`, `(x, y)` or `(x, y, sample_weight)`, each a nest of arrays if the model has
            several (`([a, b], y)`); or a factory called as `data(**data_kwargs, **knobs)` that returns a
            `keras.utils.PyDataset`, a `tf.data.Dataset`, a generator or such arrays; or a ready-made PyDataset whose
            attribute `batch_size` can be set. The knobs (`batch_size`, `workers`, `max_queue_size`, `use_multiprocessing`)
            among the factory's parameters are tuned; it may name `workers` `num_parallel_calls`, and `max_queue_size`
            `prefetch`. In a factory of a `tf.data.Dataset`, `tf.data.AUTOTUNE` (-1) is tried for these two
            beside numbers.
        validation: validation data, like `data`; the confirming runs validate on it, so that its memory counts.
        model_kwargs: arguments of `build_model`.
        data_kwargs: arguments of the data factory other than the knobs; a knob given here is fixed instead of tuned.
        validation_kwargs: arguments of the validation factory.
        fit_kwargs: further arguments of `fit`, passed through every trial and to the generated call: `class_weight`,
            `validation_split`, `validation_steps`, `validation_batch_size`, `validation_freq`, `steps_per_epoch` (for the
            baseline's batch size; scaled to others), `shuffle`, `epochs`, `initial_epoch`, `verbose`, and `callbacks`: a
            list or a function that returns one. Callbacks that write files or end a training (`ModelCheckpoint`,
            `EarlyStopping`, …) are not run in trials.
        dtype_policy: Keras's default dtype policy while the model is built, such as "mixed_float16"; None keeps it.
        jit_compile: whether XLA (on torch: torch.compile) compiles the train step, overriding `compile`; None keeps what
            `compile` was given.
        backend: the backend of Keras that trains: "tensorflow", "jax" or "torch"; None for that of `KERAS_BACKEND` or of
            Keras's file.
        space: values to try for each knob: a tuple (lowest, highest) or a list; defaults for the knobs left out. -1 in a
            list is `tf.data.AUTOTUNE`.
        device: auto (the first GPU, or the CPU), cpu, gpu, gpu:0, gpu:1, …
        devices: how many devices train one model together, a share of each batch on each, or the numbers of the GPUs; None
            for one. Batch sizes are then of all together, and multiples of that number. With device: cpu they are logical
            devices of one CPU, to try the code.
        distribution: "data_parallel" to build the model under a `tf.distribute.MirroredStrategy` (on JAX, a
            `keras.distribution.DataParallel`) where `devices` are several; None where `build_model` sees to that itself.
        device_memory: most memory of each device in a trial: a percentage of the GPU memory free now, a size ("6GiB"), or
            bytes. On a CPU, which has no device memory of its own, a percentage sets no limit and a size caps TensorFlow's
            allocator.
        host_memory: most RAM of a trial, all its processes together: a percentage of what the machine or the container
            allows, a size ("6GiB"), or bytes.
        max_trials: most trials of the search; describing and confirming are not counted.
        max_seconds: most seconds for the whole tune, what runs last is ended then; None for no limit. Time for three pairs
            of confirming runs is kept as soon as a trial has finished; in less time no gain can be shown.
        max_trial_seconds: most seconds for a trial; a longer one is stopped and recorded as a timeout. Where torch.compile
            compiles the step, 300 more.
        tolerance: relative difference of throughput below which configurations count as equally fast (0.02 is 2 %): of
            those within it of the fastest, the one nearest to the baseline is chosen, first by its batch size.
        headroom: share of each memory limit that a configuration's predicted memory, uncertainty included, must leave free
            (0.03 is 3 %). A higher value makes out-of-memory trials rarer and leaves more memory unused.
        max_oom: number of out-of-memory trials after which nothing larger than the finished trials is tried.
        max_batch_size: largest batch size to try, samples; applies to `space`, too. None for no limit.
        effective_batch_size: samples of one weight update. Only batch sizes that divide it are tried, each with gradients
            accumulated over enough batches (`gradient_accumulation_steps` of Keras's optimizers).
        sample_count: samples in an epoch of data of unknown length: an endless generator or `tf.data.Dataset`. It sets
            `steps_per_epoch`.
        expected_training_seconds: how long you will train, with the fastest configuration so far. The search then ends when
            no trial is expected to save more than it takes; None for a training so long that any trial does.
        min_updates: fewest updates of the weights an epoch, full batches counted. Batch sizes that leave fewer are not
            tried, except for the baseline's. Needs a known number of samples; not used with `effective_batch_size`.
        baseline: configuration to compare with, a value for each knob. Knobs left out have the factory's own default
            values (a PyDataset object's attributes), or else Keras's. It is the result
            unless another is shown to be faster.
        storage: Optuna storage URL, or path of an SQLite file; None for a file in the user's data folder.
        fresh: whether to delete stored trials of the same request first.
        launch: how to start trials: fork (from a warm server, fast), plain (a new interpreter each), or auto.
        wait: whether to wait for another autofit that measures on the device; otherwise that is an error.
        progress: whether to show progress, or a `Progress` to show it on.

    Returns:
        The result. Pass `result.data_kwargs` to the data factory, `result.fit_kwargs` to `fit` and
        `result.optimizer_kwargs` to the optimizer.

    Raises:
        UsageError: an argument is wrong; nothing was trained.
        DeviceBusyError: the calling process itself holds the GPU.
        DeviceLockedError: another autofit measures on the device, and `wait` is off.
        UserCodeError: the model or data code raised; the message contains its traceback.
        NothingFitsError: not even the smallest batch fits the limits.
        NoTrialFinishedError: no trial finished, for other reasons than memory.
        TrialProcessError: no process for trials could be started.
        StorageError: the trials cannot be stored.
        KeyboardInterrupt: Ctrl-C was pressed; all processes are stopped and finished trials are kept.
    """
    arguments = {name: value for name, value in locals().items() if name not in ("fresh", "wait", "progress")}
    return _tune(*parse(arguments), progress, fresh=fresh, wait=wait)


def tune_file(
    path: str | os.PathLike[str],
    *,
    fresh: bool = False,
    wait: bool = True,
    progress: bool | Progress = True,
    **overrides: Any,
) -> Result:
    """Run the tune that a YAML file describes; see `tune`.

    Args:
        path: path of the file.
        fresh: as for `tune`.
        wait: as for `tune`.
        progress: as for `tune`.
        overrides: arguments of `tune` that take precedence over the file.

    Returns:
        The result, as from `tune`.

    Raises:
        ConfigError: the file is invalid; the message names file, line, column and key.
        AutofitError: as for `tune`.
    """
    with load.placing_errors(path, overrides):
        return _tune(*parse({**load.load(path), **overrides}), progress, fresh=fresh, wait=wait)


def _tune(workload: Workload, settings: TuneSettings, progress: bool | Progress, *, fresh: bool, wait: bool) -> Result:
    """Tune; without a `Progress` of the caller's, print a summary of the result at the end."""
    shown = progress_of(progress)
    result = Result.of(run_tune(workload, settings, shown, fresh=fresh, wait=wait))
    if shown is not progress and not shown.console.is_jupyter:  # a notebook shows the result itself
        shown.summarise(result)
    return result
