"""The settings of a tune: type, default, range and text of each.

`tune()`, tuning files, the cells of sweeps and the JSON schema all use this model. The signatures and docstrings of the
public functions and the tables in the README are written from it by `python -m tests.arguments`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from autofit.errors import UsageError
from autofit.machine import gpus, limits
from autofit.records.knobs import KNOBS
from autofit.records.trial import AUTOTUNE, FEW_UPDATES
from autofit.search.space import VALIDATED, AutotunedValue, Space
from autofit.workload.arguments import EXPLAINED, NONE_IS_EMPTY, written_as


def _share(value: Any) -> Any:
    """Convert `2%` to 0.02."""
    if isinstance(value, str) and value.strip().endswith("%"):
        with contextlib.suppress(ValueError):
            return float(value.strip()[:-1]) / 100
    return value


def _at_least(knob: str) -> Callable[[int], int]:
    lowest = KNOBS[knob].lowest

    def validate(value: int) -> int:
        if value < lowest and value != AUTOTUNE:
            raise ValueError(f"give a whole number from {lowest} on, or -1 (tf.data.AUTOTUNE)")
        return value

    return validate


TUNE, KEEP, LARGEST = "tune", "keep", "largest"
"""What to do with the batch size: find both answers, only that of the own batch size, or the largest batch that fits."""


def _sampler(value: Any) -> Any:
    if value is not None:
        from autofit.search.sampler import is_sampler  # loads Optuna, which takes a second

        if not is_sampler(value):
            raise ValueError("in Python, give a sampler of Optuna, as in options={'sampler': optuna.samplers.TPESampler()}")
    return value


Share = Annotated[
    float,
    Field(ge=0, lt=1, strict=False),
    BeforeValidator(_share, json_schema_input_type=float | Annotated[str, Field(pattern=r"^\s*[0-9.]+\s*%\s*$")]),
    written_as("write a percentage (2%) or a share (0.02), below 100%"),
]
Memory = Annotated[str | int, AfterValidator(limits.validated), written_as(limits.AMOUNTS)]
Device = Annotated[str, Field(pattern=gpus.DEVICE), written_as("write auto, cpu, gpu, gpu:1, gpu:0,1, 2x gpu or 2x cpu")]
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, strict=False, allow_inf_nan=False)]


class Baseline(BaseModel):
    """The config to compare with; a knob that is left out has the value that the data gives it, or Keras's default."""

    model_config = VALIDATED

    batch_size: Count | None = None
    workers: Annotated[AutotunedValue, AfterValidator(_at_least("workers"))] | None = None
    max_queue_size: Annotated[AutotunedValue, AfterValidator(_at_least("max_queue_size"))] | None = None
    use_multiprocessing: bool | None = None
    prefetch_factor: Count | None = None
    steps_per_execution: Count | None = None

    def values(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


class Options(BaseModel):
    """What few tunes need to change."""

    model_config = VALIDATED

    tolerance: Share = Field(
        default=0.02,
        description="Relative difference in throughput below which configurations count as equally fast (2%, or 0.02). "
        "Among these, the one nearest to the baseline is chosen; batch sizes are compared first.",
    )
    max_trial_seconds: Seconds = Field(
        default=180.0,
        description="Time limit of a trial, in seconds; a longer trial is stopped and recorded as a timeout. The limit is "
        "300 seconds longer if torch.compile compiles the train step.",
    )
    min_updates: Count = Field(
        default=FEW_UPDATES,
        description="Fewest weight updates in an epoch, counting only full batches. Batch sizes that leave fewer are not "
        "tried, except the baseline's. Ignored if the number of samples is unknown or `effective_batch_size` "
        "is given.",
    )
    fresh: bool = Field(default=False, description="Whether to delete the stored trials of the same request first.")
    wait: bool = Field(
        default=True,
        description="Whether to wait while another autofit is measuring on the device; if false, an error is raised.",
    )
    launch: Literal["auto", "fork", "plain"] = Field(
        default="auto",
        description="How trials start: fork (from a warm server, fast), plain (a new interpreter each), or auto.",
    )
    sampler: SkipJsonSchema[Annotated[Any, AfterValidator(_sampler)]] = Field(
        default=None,
        exclude=True,  # not in files
        description="Sampler of Optuna that proposes what to try, such as `optuna.samplers.TPESampler()`, in place of "
        "autofit's own search; in Python only. Each proposal is moved to the nearest configuration that has not been tried "
        "and is predicted to fit.",
    )
    headroom: Share = Field(
        default=0.03,
        description="Share of each memory limit that must stay free according to the upper bound of the predicted memory "
        "(3%, or 0.03). A batch size that may take more device memory is tried only if its expected gain is worth the time "
        "of an out-of-memory trial; one that may take more host memory is never tried.",
    )
    max_oom: Count = Field(
        default=2,
        description="Number of out-of-memory trials after which no larger batch size and no more worker processes are "
        "tried than in the finished trials.",
    )


class TuneSettings(BaseModel):
    """The settings of a tune: what is searched, where, within which limits, and how long.

    Raises:
        UsageError: names the setting, its value and what is allowed.
    """

    model_config = VALIDATED

    space: Annotated[Space, NONE_IS_EMPTY] = Field(
        default=Space(),
        description='Values to try for each knob: a range, `{"min": 8, "max": 1024}`, or a list of choices, `[8, 16, '
        "1024]`. Knobs left out get defaults. In a list, -1 is `tf.data.AUTOTUNE`.",
    )
    batch_size: Literal["tune", "keep", "largest"] | Count = Field(
        default="tune",
        description="What to do with the batch size. tune: find the fastest configuration at your own batch size, which "
        "trains with the same updates, and the fastest of all. keep: only the first. A number: the same, and this is your "
        "own batch size. largest: the largest batch that fits. Your own batch size is that of `baseline`.",
    )
    baseline: Annotated[Baseline, NONE_IS_EMPTY] = Field(
        default=Baseline(),
        description="Your present configuration, a value for each knob, to compare with. Knobs left out have the defaults "
        "of your data factory (or the attributes of your PyDataset), or else Keras's. The baseline is the result unless "
        "another configuration is shown to be faster.",
    )
    device: Device = Field(
        default="auto",
        description="Device to train on: auto (the first GPU, or the CPU), cpu, gpu, gpu:0, gpu:1, … Several GPUs of one "
        "model train one model together: gpu:0,1 those with these indices, 2x gpu any two. Batch sizes are then global and "
        "multiples of the number of devices. To test the code without GPUs, 2x cpu makes two devices of a CPU.",
    )
    device_memory: Memory = Field(
        default="90%",
        description="Memory limit of each device: a percentage of the GPU memory that is free now, a size (6GiB), or "
        "bytes. A CPU has no device memory of its own: there a percentage sets no limit, and a size caps TensorFlow's "
        "allocator.",
    )
    host_memory: Memory = Field(
        default="80%",
        description="Memory limit of a trial's processes together: a percentage of the RAM that the machine or the "
        "container allows, a size (6GiB), or bytes. The limit is never more than what is free.",
    )
    max_trials: Count = Field(
        default=12,
        description="Maximum number of trials in the search. Describing the workload and confirming the choice do not "
        "count, nor do at most two trials at your own batch size after the search.",
    )
    max_seconds: Seconds | None = Field(
        default=None,
        description="Time limit of the whole tune, in seconds; None for no limit. A trial that is still running when it "
        "is reached is ended. Once three trials have finished, time for three rounds of confirming runs is reserved; fewer "
        "cannot show a gain.",
    )
    effective_batch_size: Count | None = Field(
        default=None,
        description="Samples of one weight update, reached by accumulating gradients over several batches "
        "(`gradient_accumulation_steps` of Keras's optimizers). Only batch sizes that divide it are tried.",
    )
    storage: str | None = Field(
        default=None,
        description="Where trials are stored: an Optuna storage URL, journal:FILE, or the path of an SQLite file; None for "
        "a file in your data folder.",
    )
    options: Annotated[Options, NONE_IS_EMPTY] = Field(
        default=Options(),
        description='What few tunes need to change, as in `{"tolerance": 0.05, "fresh": True}`.',
    )

    _explained = EXPLAINED

    @model_validator(mode="before")
    @classmethod
    def _place_options(cls, given: Any) -> Any:
        for name in given if isinstance(given, dict) else ():
            if name in Options.model_fields:
                raise UsageError(f"is one of the options; write options: {{{name}: {given[name]}}}", key=name)
        return given

    @model_validator(mode="after")
    def _check_batch_size(self) -> TuneSettings:
        present, size = self.baseline.batch_size, self.batch_size
        if size != TUNE and self.space.batch_size is not None:
            raise UsageError(
                f'{size!r} is given, but space gives values to try; remove batch_size from space, or write "{TUNE}"',
                key="batch_size",
            )
        if isinstance(size, int):
            if present not in (None, size):
                raise UsageError(f"{size} is given, but baseline has {present}; give one of them", key="batch_size")
            self.__dict__ |= {"batch_size": KEEP, "baseline": self.baseline.model_copy(update={"batch_size": size})}
        return self
