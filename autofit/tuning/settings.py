"""The settings of a tune: type, default and range of each; what they mean is in the docstring of
`autofit.tune`.

`tune()`, tuning files, the cells of sweeps and the JSON schema all use this model.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from autofit.errors import UsageError
from autofit.machine import gpus, limits
from autofit.records.trial import FEW_UPDATES
from autofit.search.space import TOLERANCE, VALIDATED, Baseline, Space
from autofit.workload.arguments import EXPLAINED, NONE_IS_EMPTY, written_as
from autofit.workload.inputs.knobs import has_base

TUNE, KEEP, LARGEST = "tune", "keep", "largest"
"""What to do with the batch size: find both answers, that of the own size, or the largest size."""


def _sampler(value: Any) -> Any:
    if value is not None and not has_base(value, "optuna", "BaseSampler"):
        example = "options={'sampler': optuna.samplers.TPESampler()}"
        raise ValueError(f"in Python, give a sampler of Optuna, as in {example}")
    return value


Share = Annotated[
    float,
    Field(ge=0, lt=1, strict=False),
    written_as("write a share below 1, such as 0.02"),
]
Memory = Annotated[
    str | int, AfterValidator(limits.check_amount), written_as(limits.AMOUNTS)
]
Device = Annotated[
    str,
    Field(pattern=gpus.DEVICE),
    written_as("write auto, cpu, gpu, gpu:1, gpu:0,1, 2x gpu or 2x cpu"),
]
Whole = Annotated[int, Field(ge=1)]
Count = Annotated[Whole, written_as("write a whole number of at least 1")]
Seconds = Annotated[
    float,
    Field(gt=0, strict=False, allow_inf_nan=False),
    written_as("write a number of seconds above 0"),
]
BatchSize = Annotated[
    Literal["tune", "keep", "largest"] | Whole,
    written_as("write tune, keep, largest or a number"),
]


class Options(BaseModel):
    """What few tunes need to change."""

    model_config = VALIDATED

    tolerance: Share = TOLERANCE
    max_trial_seconds: Seconds = 180.0
    min_updates: Count = FEW_UPDATES
    fresh: bool = False
    wait: bool = True
    launch: Literal["auto", "fork", "plain"] = "auto"
    # not in files
    sampler: SkipJsonSchema[Annotated[Any, AfterValidator(_sampler)]] = Field(
        default=None, exclude=True
    )


class TuneSettings(BaseModel):
    """The settings of a tune: what is searched, where, within which limits, and how long."""

    model_config = VALIDATED

    space: Annotated[Space, NONE_IS_EMPTY] = Space()
    batch_size: BatchSize = "tune"
    baseline: Annotated[Baseline, NONE_IS_EMPTY] = Baseline()
    device: Device = "auto"
    device_memory: Memory = "90%"
    host_memory: Memory = "80%"
    max_trials: Count = 12
    max_seconds: Seconds | None = None
    effective_batch_size: Count | None = None
    storage: str | None = None
    options: Annotated[Options, NONE_IS_EMPTY] = Options()

    _explained = EXPLAINED

    @model_validator(mode="after")
    def _check_batch_size(self) -> TuneSettings:
        size = self.batch_size
        if size != TUNE and "batch_size" in self.space.values():
            problem = f"{size!r} is given, but space gives values to try"
            remedy = f'remove batch_size from space, or write "{TUNE}"'
            raise UsageError(f"{problem}; {remedy}", key="batch_size")
        if isinstance(size, int):
            present = self.baseline.values().get("batch_size")
            if present not in (None, size):
                problem = f"{size} is given, but baseline has {present}"
                raise UsageError(f"{problem}; give one of them", key="batch_size")
            # a number is the user's present batch size, which the tune keeps; the model is
            # frozen for all others
            baseline = self.baseline.model_copy(update={"batch_size": size})
            self.__dict__ |= {"batch_size": KEEP, "baseline": baseline}
        return self
