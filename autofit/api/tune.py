"""`tune`: find the fastest configuration of `fit` that fits in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from autofit.api.result import Result
from autofit.api.session import explain_calls, parse, progress_of, run_tune
from autofit.backends import BackendName
from autofit.report.console.progress import Progress
from autofit.report.console.tables import Terminal


# the command line, the JSON schema and the tables of configs/README.md have the texts of the
# arguments from this docstring
@explain_calls
def tune(
    build_model: Callable[..., Any],
    data: Any,
    *,
    validation: Any = None,
    fit_kwargs: Mapping[str, Any] = {},
    batch_size: Literal["tune", "keep", "largest"] | int = "tune",
    space: Mapping[str, Any] = {},
    baseline: Mapping[str, Any] = {},
    device_memory: str | int = "90%",
    host_memory: str | int = "80%",
    max_seconds: float | None = None,
    max_trials: int = 12,
    effective_batch_size: int | None = None,
    call: Literal["fit", "predict", "evaluate"] = "fit",
    device: str = "auto",
    distribution: Literal["data_parallel"] | None = None,
    backend: BackendName | None = None,
    dtype_policy: str | None = None,
    jit_compile: bool | None = None,
    model_kwargs: Mapping[str, Any] = {},
    data_kwargs: Mapping[str, Any] = {},
    validation_kwargs: Mapping[str, Any] = {},
    storage: str | None = None,
    progress: bool | Progress = True,
    options: Mapping[str, Any] = {},
) -> Result:
    """Find the fastest configuration of `fit` that fits in memory.

    Each trial trains for a few seconds in its own process. What is likely the best runs again, and
    beside the baseline, so that a gain can be shown. Trials and results are stored: an interrupted
    tune resumes, and a repeated tune returns at once.

    Args:
        build_model: function called as `build_model(**model_kwargs)`; returns a compiled
            `keras.Model`.
        data: arrays as `fit` takes them: `x`, `(x, y)` or `(x, y, sample_weight)`, where each part
            may be a nest of arrays for a model with several inputs or outputs (`([a, b], y)`); or a
            factory called as `data(**data_kwargs, **knobs)` that returns a `keras.utils.PyDataset`,
            a `tf.data.Dataset`, a torch `DataLoader`, a grain dataset, a generator or such arrays;
            or a PyDataset object whose attribute `batch_size` can be set. The knobs (`batch_size`,
            `workers`, `max_queue_size`, `use_multiprocessing`) among the factory's parameters are
            tuned. Its parameter for `workers` may be named `num_parallel_calls`, and that for
            `max_queue_size` may be named `prefetch`; for a `tf.data.Dataset`, `tf.data.AUTOTUNE` is
            tried, too.
        validation: validation data, like `data`. The first further run of a configuration validates
            on it, so that its memory counts.
        fit_kwargs: further arguments of `fit`, used in every trial and in the generated call.
            Allowed are `class_weight`, `validation_split`, `validation_steps`,
            `validation_batch_size`, `validation_freq`, `steps_per_epoch` (for the baseline's batch
            size; scaled to others), `shuffle`, `epochs`, `initial_epoch`, `verbose`, and
            `callbacks`: a list, or a function that returns one. Trials run none of a list; a
            function `callbacks(folder)` is called in each trial with an empty folder, and all that
            it returns runs.
        batch_size: what to do with the batch size. tune: find the fastest configuration at your own
            batch size, which trains with the same updates, and the fastest of all. keep: only the
            first. A number: the same, and this is your own batch size. largest: the largest batch
            that fits. Your own batch size is that of `baseline`.
        space: values to try for each knob: a range, `{"min": 8, "max": 1024}`, or a list of
            choices, `[8, 16, 1024]`. Knobs left out get defaults. In a list, -1 is
            `tf.data.AUTOTUNE`.
        baseline: your present configuration, a value for each knob, to compare with. Knobs left out
            have the defaults of your data factory (or the attributes of your PyDataset), or else
            Keras's. The baseline is the result unless another configuration is likely to be faster.
        device_memory: memory limit of each device: a percentage of the GPU memory that is free now,
            a size (6GiB), or bytes. A CPU has no device memory of its own: there a percentage sets
            no limit, and a size caps TensorFlow's allocator.
        host_memory: memory limit of a trial's processes together: a percentage of the RAM that the
            machine or the container allows, a size (6GiB), or bytes. The limit is never more than
            what is free.
        max_seconds: time limit of the whole tune, in seconds; None for no limit. Time for a run of
            what is to be delivered is reserved.

    Other Parameters:
        max_trials: maximum number of trials, of new configurations and once more of those that have
            run. Describing the workload does not count, nor do the runs of what is to be delivered,
            alone and beside the baseline.
        effective_batch_size: samples of one weight update, reached by accumulating gradients over
            several batches (`gradient_accumulation_steps` of Keras's optimizers). Only batch sizes
            that divide it are tried.
        call: method of the model that is tuned: fit, or inference with predict or evaluate.
            Inference has no optimizer and no gradients; a model for predict need not be compiled.
        device: device to train on: auto (the first GPU, or the CPU), cpu, gpu, gpu:0, gpu:1, …
            Several GPUs of one model train one model together: gpu:0,1 those with these indices, 2x
            gpu any two. Batch sizes are then global and multiples of the number of devices. To test
            the code without GPUs, 2x cpu makes two devices of a CPU.
        distribution: "data_parallel" builds the model for several devices under a
            `tf.distribute.MirroredStrategy` (on JAX: a `keras.distribution.DataParallel`); None if
            `build_model` does that itself.
        backend: backend of Keras to train on; None for the one that `KERAS_BACKEND` or keras.json
            names.
        dtype_policy: default dtype policy of Keras while the model is built, such as
            "mixed_float16"; None for no change.
        jit_compile: whether XLA (on torch: torch.compile) compiles the train step; None keeps what
            `compile` was given.
        model_kwargs: arguments of `build_model`.
        data_kwargs: arguments of the data factory. A knob given here is fixed instead of tuned.
        validation_kwargs: arguments of the validation factory.
        storage: where trials are stored: an Optuna storage URL, journal:FILE, or the path of an
            SQLite file; None for a file in your data folder. What trials compile is kept beside the
            file for a week.
        progress: whether to show progress, or a `Progress` to show it on.
        options: what few tunes need to change, as in `{"tolerance": 0.05, "fresh": True}`.

    Options:
        tolerance: relative difference in throughput below which configurations count as equally
            fast (0.02 is 2%). Among these, the one nearest to the baseline is chosen; batch sizes
            are compared first.
        max_trial_seconds: time limit of a trial, in seconds; a longer trial is stopped and recorded
            as a timeout. The limit is 300 seconds longer if torch.compile compiles the train step.
        min_updates: fewest weight updates in an epoch, counting only full batches. Batch sizes that
            leave fewer are not tried, except the baseline's and those in a list of choices. Ignored
            if the number of samples is unknown or `effective_batch_size` is given.
        fresh: whether to delete the stored trials of the same request first.
        wait: whether to wait while another autofit is measuring on the device; if false, an error
            is raised.
        launch: how trials start: fork (from a warm server, fast), plain (a new interpreter each),
            or auto.
        sampler: sampler of Optuna that proposes what to try, such as
            `optuna.samplers.TPESampler()`, in place of autofit's own search; in Python only. Each
            proposal is moved to the nearest configuration that has not been tried and is predicted
            to fit.

    Returns:
        The result. Pass `result.data_kwargs` to the data factory, `result.fit_kwargs` to `fit`,
        `result.compile_kwargs` to `compile` and `result.optimizer_kwargs` to the optimizer.

    Raises:
        UsageError: an argument is wrong; nothing was trained. The message lists all that is wrong.
        DeviceBusyError: this process holds memory of the GPU, or another autofit is measuring and
            `wait` is false.
        UserCodeError: the user's code raised an exception; the message contains its traceback.
        NothingFitsError: even the smallest batch needs more memory than the limit.
        NoTrialFinishedError: no trial finished, and the reason was not memory.
        TrialProcessError: no process for trials could be started.
        StorageError: the storage cannot be opened, or fails before a trial has run.
        KeyboardInterrupt: Ctrl-C was pressed; all processes are stopped and finished trials are
            kept.

    Example:
        >>> space = {"batch_size": [32, 256]}
        >>> result = autofit.tune(build_model, arrays, space=space, max_seconds=60, progress=False)
        >>> history = build_model().fit(*arrays, **result.fit_kwargs, verbose=0)
        >>> result.config.batch_size in (32, 256)
        True
    """
    # all but `progress` are keys of a tuning file, too
    arguments = dict(locals())
    del arguments["progress"]
    return tune_arguments(arguments, progress)


def tune_arguments(arguments: Mapping[str, Any], progress: bool | Progress) -> Result:
    """Tune what the arguments of `tune` or `tune_script` describe."""
    shown = progress_of(progress)
    result = Result.of(run_tune(*parse(arguments), shown))
    # a notebook shows the result itself
    if shown is not progress and not Terminal().is_in_notebook:
        shown.summarise(result)
    return result
