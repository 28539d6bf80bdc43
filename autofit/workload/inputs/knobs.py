"""The knobs of the user's data: parameters of a factory, or attributes of an object."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from autofit.records.knobs import (
    AUTOTUNE,
    DATA_KNOBS,
    KERAS_DEFAULTS,
    KNOBS,
    PERSISTENT,
    PROCESSES,
    FitConfig,
)

NO_AUTOTUNE = (
    "only a factory of a tf.data.Dataset takes -1 (tf.data.AUTOTUNE); give a number"
)
PREFETCH_FACTOR = 2  # the default `prefetch_factor` of a torch DataLoader with workers


def has_base(value: Any, package: str | tuple[str, ...], *names: str) -> bool:
    """Return whether a value's class, or a base of it, has one of these names in a package."""
    # by the names of the classes, because this process must not import the libraries
    return any(
        base.__name__ in names and base.__module__.startswith(package)
        for base in type(value).__mro__
    )


def is_pydataset(value: Any) -> bool:
    """Return whether a value is a `keras.utils.PyDataset`."""
    return has_base(value, "keras", "PyDataset")


def parameters_of(data: Any) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a factory; none if the data is not a factory."""
    return inspect.signature(data).parameters if callable(data) else {}


def switches_of(data: Any) -> set[str]:
    """Return the parameters of a factory that turn something on or off, and take no number."""
    parameters = parameters_of(data).values()
    return {
        parameter.name
        for parameter in parameters
        if isinstance(parameter.default, bool)
    }


def makes_processes(names: Mapping[str, str]) -> bool:
    """Return whether workers that Keras does not start are processes, by their knob's name."""
    return names.get("workers") == PROCESSES and "use_multiprocessing" not in names


def _can_set(data: Any, name: str) -> bool:
    try:
        setattr(copy.copy(data), name, getattr(data, name))
    except AttributeError:
        return False
    return True


def knobs_of(data: Any, fixed: Mapping[str, Any]) -> dict[str, str]:
    """Return the knobs that the data takes and the user does not fix, with their names in it."""
    # A factory takes a knob if it has `**kwargs` or a parameter with one of the knob's names. A
    # PyDataset object takes the knobs that are writable attributes; arrays take none. The
    # `data_kwargs` in `fixed` and the keywords of a `functools.partial` fix knobs.
    if not callable(data):
        return {
            knob: knob
            for knob in DATA_KNOBS
            if is_pydataset(data) and _can_set(data, knob)
        }
    given = fixed_in(data, fixed)
    kinds = {parameter.kind for parameter in parameters_of(data).values()}
    named = {
        parameter.name
        for parameter in parameters_of(data).values()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    switches = switches_of(data)
    knobs = {}
    for knob in DATA_KNOBS:
        row = KNOBS[knob]
        if given.intersection(row.parameters):
            continue
        names = [
            name for name in row.parameters if row.is_switch or name not in switches
        ]
        taken = [name for name in names if name in named]
        if inspect.Parameter.VAR_KEYWORD in kinds and row.by_kwargs and knob in names:
            taken.append(knob)
        if taken:
            knobs[knob] = taken[0]
    return knobs


def fixed_in(data: Any, fixed: Mapping[str, Any]) -> set[str]:
    """Return the arguments that the user fixes, by `data_kwargs` or by a `functools.partial`."""
    return {*fixed, *data.keywords} if isinstance(data, functools.partial) else {*fixed}


def required_of(data: Any, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that are required parameters of a factory; none of other data."""
    parameters = parameters_of(data)
    no_value = inspect.Parameter.empty
    required = {name for name, each in parameters.items() if each.default is no_value}
    return tuple(name for name in names if name in required)


def defaults_of(
    data: Any, names: Mapping[str, str], *, autotunes: bool
) -> dict[str, int]:
    """Return the data's own values of its knobs: defaults of parameters, or attributes."""
    # without values that a config cannot have, such as None, or AUTOTUNE unless the data
    # `autotunes`
    parameters = parameters_of(data)
    own = {}
    for knob, name in names.items():
        row = KNOBS[knob]
        value: Any = (
            parameters[name].default
            if name in parameters
            else getattr(data, name, None)
        )
        is_auto = autotunes and row.autotunes and value == AUTOTUNE
        has_type = type(value) is (bool if row.is_switch else int)
        if has_type and (is_auto or value >= row.lowest):
            own[knob] = value
    return own


def with_defaults(config: FitConfig, defaults: Mapping[str, int]) -> FitConfig:
    """Fill the knobs of a config that are None with the data's own values, or Keras's."""
    return FitConfig.of({**KERAS_DEFAULTS.values(), **defaults, **config.values()})


def as_written(config: FitConfig, data: Any, names: Mapping[str, str]) -> FitConfig:
    """Fill only the knobs that need a value; one that stays None keeps the data's own value."""
    # a factory's required parameters need one, which is 0 for a number of worker processes; and so
    # does the batch size, which is an argument of `fit` for arrays
    required = required_of(data, names.values())
    usual = {"prefetch_factor": PREFETCH_FACTOR}
    if names.get("workers") == PROCESSES:
        usual["workers"] = 0
    whole = with_defaults(
        config, {**usual, **defaults_of(data, names, autotunes=False)}
    )
    needed = {"batch_size", *(knob for knob, name in names.items() if name in required)}
    filled = {knob: value for knob, value in whole.values().items() if knob in needed}
    return FitConfig.of({**filled, **config.values()})


def arguments_of(names: Mapping[str, str], config: FitConfig) -> dict[str, Any]:
    """Return the arguments that apply a config to a factory, which takes knobs by these names."""
    values: dict[str, Any] = {
        knob: value for knob, value in config.values().items() if knob in names
    }
    if "max_queue_size" in values and not config.has_queue:
        values["max_queue_size"] = 1  # Keras itself keeps one batch of tf.data ready
    if "prefetch_factor" in values and not config.has_queue:
        # torch's, or grain's
        values["prefetch_factor"] = (
            None if names["prefetch_factor"] == "prefetch_factor" else 1
        )
    if names.get("use_multiprocessing") == PERSISTENT:
        values["use_multiprocessing"] = config.has_queue
    return {names[knob]: value for knob, value in values.items()}
