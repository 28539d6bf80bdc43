"""The arguments of a tune: their types and ranges."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from autofit.errors import UsageError
from autofit.machine import limits
from autofit.records.trial import AUTOTUNE, FEW_UPDATES
from autofit.workload.inputs.knobs import NAMES


def _share(value: Any) -> Any:
    """Convert `2%` to 0.02."""
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            return float(value.strip()[:-1]) / 100
        except ValueError:
            raise ValueError("write a percentage (2%) or a share (0.02)") from None
    return value


def _memory(value: str | int) -> str | int:
    try:
        limits.validate_amount(value)
    except UsageError as error:
        raise ValueError(str(error)) from None
    return value


_AUTOTUNE_NAMES = ("auto", "autotune", "tf.data.autotune")
_DESCENDING = "descending_range"
_SHARES = ("tolerance", "headroom")
_FORMS: dict[int | str, str] = {
    "device": "one of auto, cpu, gpu, gpu:0, gpu:1, …",
    "devices": "allowed; write how many devices (4), or the numbers of GPUs ([0, 2])",
}


class Range(BaseModel):
    """A range of whole numbers, both ends included."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    min: int
    max: int

    @model_validator(mode="after")
    def _ascending(self) -> Range:
        if self.min > self.max:
            raise PydanticCustomError(_DESCENDING, "min is larger than max")
        return self


def _autotune(value: Any) -> Any:
    """Convert the names of AUTOTUNE to its number."""
    return AUTOTUNE if isinstance(value, str) and value.lower() in _AUTOTUNE_NAMES else value


IntegerValues = Range | Annotated[list[int], Field(min_length=1)] | int
_AutotunedValue = Annotated[
    int,
    BeforeValidator(
        _autotune, json_schema_input_type=int | Annotated[str, Field(pattern=r"^(auto|AUTOTUNE|tf\.data\.AUTOTUNE)$|\$\{")]
    ),
]
AutotunedValues = Range | Annotated[list[_AutotunedValue], Field(min_length=1)] | _AutotunedValue
_AS_SHARE = BeforeValidator(
    _share,
    json_schema_input_type=float | Annotated[str, Field(pattern=r"^\s*[0-9.]+\s*%\s*$|\$\{")],
)
Memory = Annotated[str | int, AfterValidator(_memory)]
Device = Annotated[str, Field(pattern=r"^(auto|cpu|gpu(:\d+)?)$")]
Devices = Annotated[int, Field(ge=1)] | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class Space(BaseModel):
    """The search space; a knob that is left out gets defaults."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    batch_size: IntegerValues | None = None
    workers: AutotunedValues | None = None
    max_queue_size: AutotunedValues | None = None
    use_multiprocessing: list[bool] | bool | None = None
    prefetch_factor: IntegerValues | None = None

    @model_validator(mode="before")
    @classmethod
    def _ranges(cls, values: Any) -> Any:
        """Convert a tuple of two, as programs write a range."""
        if not isinstance(values, dict):
            return values
        return {
            knob: {"min": value[0], "max": value[1]} if isinstance(value, tuple) and len(value) == 2 else value
            for knob, value in values.items()
        }

    def values(self) -> dict[str, Any]:
        """The values of the knobs that are set, as `tune()` takes them: a tuple for a range, a list for choices."""
        chosen = {knob: getattr(self, knob) for knob in self.model_fields_set if getattr(self, knob) is not None}
        return {
            knob: (value.min, value.max) if isinstance(value, Range) else value if isinstance(value, list) else [value]
            for knob, value in chosen.items()
        }


def _at_least(lowest: int) -> Callable[[int], int]:
    """A validator of a number from `lowest` on, or AUTOTUNE."""

    def validate(value: int) -> int:
        if value < lowest and value != AUTOTUNE:
            raise ValueError(f"give a whole number from {lowest} on, or -1 (tf.data.AUTOTUNE)")
        return value

    return validate


class Baseline(BaseModel):
    """The config to compare with; a knob that is left out has the value that the data gives it, or Keras's default."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    batch_size: Annotated[int, Field(ge=1)] | None = None
    workers: Annotated[_AutotunedValue, AfterValidator(_at_least(0))] | None = None
    max_queue_size: Annotated[_AutotunedValue, AfterValidator(_at_least(1))] | None = None
    use_multiprocessing: bool | None = None
    prefetch_factor: Annotated[int, Field(ge=1)] | None = None

    def values(self) -> dict[str, Any]:
        """The knobs that are set."""
        return self.model_dump(exclude_none=True)


class _WorkloadKeys(BaseModel):
    """The keys of a tuning file that name the workload."""

    build_model: str
    model_kwargs: dict[str, Any] = {}
    data: str
    data_kwargs: dict[str, Any] = {}
    validation: str | None = None
    validation_kwargs: dict[str, Any] = {}
    fit_kwargs: dict[str, Any] = {}
    host_labels: dict[str, str] = {}


class TuneSettings(BaseModel):
    """Every setting of a tune: its type, its range and its default.

    `tune()`, YAML files and the cells of sweeps all use it; `tune` documents the settings.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    dtype_policy: str | None = None
    jit_compile: bool | None = None
    backend: Literal["tensorflow", "jax", "torch"] | None = None
    device: Device = "auto"
    devices: Devices | None = None
    distribution: Literal["data_parallel"] | None = None
    device_memory: Memory = "90%"
    host_memory: Memory = "80%"
    space: Space = Space()
    max_trials: Annotated[int, Field(ge=1)] = 12
    max_seconds: Annotated[float, Field(gt=0, strict=False, allow_inf_nan=False)] | None = None
    max_trial_seconds: Annotated[float, Field(gt=0, strict=False, allow_inf_nan=False)] = 180.0
    tolerance: Annotated[float, _AS_SHARE, Field(ge=0, lt=1, strict=False)] = 0.02
    headroom: Annotated[float, _AS_SHARE, Field(ge=0, lt=1, strict=False)] = 0.03
    max_oom: Annotated[int, Field(ge=1)] = 2
    max_batch_size: Annotated[int, Field(ge=1)] | None = None
    effective_batch_size: Annotated[int, Field(ge=1)] | None = None
    sample_count: Annotated[int, Field(ge=1)] | None = None
    expected_training_seconds: Annotated[float, Field(gt=0, strict=False, allow_inf_nan=False)] | None = None
    min_updates: Annotated[int, Field(ge=1)] = FEW_UPDATES
    baseline: Baseline = Baseline()
    storage: str | None = None
    launch: Literal["auto", "fork", "plain"] = "auto"

    @property
    def device_count(self) -> int:
        """How many devices share each batch."""
        if self.devices is None:
            return 1
        return self.devices if isinstance(self.devices, int) else len(self.devices)

    @classmethod
    def of(cls, **values: Any) -> TuneSettings:
        """Validate the settings of a program; `space` and `baseline` may be None.

        Raises:
            UsageError: names the setting, its value and what is allowed.
        """
        raw = {name: value for name, value in values.items() if not (value is None and name in ("space", "baseline"))}
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            first = error.errors()[0]
            raise UsageError(problem_of(first, raw), key=dotted_key(tuple(first["loc"]))) from None


class TuneFile(TuneSettings, _WorkloadKeys):
    """The keys of a tuning file."""


DEFAULTS = TuneSettings()
"""The default of every setting."""


def dotted_key(keys: tuple[int | str, ...]) -> str:
    """The dotted path of a key, without the type names that pydantic inserts."""
    if keys[0] == "devices":
        return "devices"
    return ".".join(str(key) for key in (keys[:2] if keys[0] == "space" else keys) if key not in ("int", "str"))


def problem_of(error: Any, raw: dict[str, Any]) -> str:
    """Describe what is wrong with the value of a key, and what is allowed."""
    keys = tuple(error["loc"])
    if error["type"] == "extra_forbidden":
        models: dict[int | str, type[BaseModel]] = {"space": Space, "baseline": Baseline}
        allowed = list(models.get(keys[0], TuneFile).model_fields) if len(keys) > 1 else list(TuneFile.model_fields)
        knobs = [knob for knob, names in NAMES.items() if keys[-1] in names]  # names of knobs in tf.data factories
        similar = knobs or difflib.get_close_matches(str(keys[-1]), allowed, 1)
        hint = f"; did you mean {similar[0]}?" if similar and similar[0] in allowed else "."
        return f"there is no such key{hint} Allowed here: {', '.join(allowed)}"
    if keys[0] == "space" and len(keys) > 1:
        if error["type"] == _DESCENDING:
            return f"{raw['space'][keys[1]]!r} is not allowed: min is larger than max"
        return f"{raw['space'][keys[1]]!r} is not allowed; write a value, a list of values, or {{min: 8, max: 1024}}"
    if error["type"] == "missing":
        return "is missing; write path/to/file.py:function or package.module:function"
    if keys[0] in _FORMS:
        return f"{raw[keys[0]]!r} is not {_FORMS[keys[0]]}"
    reason = error["msg"].removeprefix("Value error, ")
    form = "; write a percentage (2%) or a share (0.02)" if keys[0] in _SHARES and "percentage" not in reason else ""
    return f"{error['input']!r} is not allowed: {reason[0].lower()}{reason[1:]}{form}"
