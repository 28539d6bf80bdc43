"""The knobs that the data takes, their names there, and the arguments that set them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from autofit.records.trial import AUTOTUNE, KERAS_DEFAULTS, KNOBS, FitConfig
from autofit.workload.inputs import prebuilt

_PERSISTENT = "persistent_workers"  # of a torch DataLoader, whose workers are always processes

NAMES: dict[str, tuple[str, ...]] = {
    "batch_size": ("batch_size",),
    "workers": ("workers", "num_parallel_calls", "num_workers"),
    "max_queue_size": ("max_queue_size", "prefetch"),
    "use_multiprocessing": ("use_multiprocessing", _PERSISTENT),
    "prefetch_factor": ("prefetch_factor",),
}
"""The parameter names of each knob in a factory: Keras's own, those of tf.data, and those of a torch DataLoader."""

NO_AUTOTUNE = "only a factory of a tf.data.Dataset takes -1 (tf.data.AUTOTUNE); give a number"
"""Why data other than `tf.data` cannot have AUTOTUNE."""

PREFETCH_FACTOR = 2
"""The default of a torch DataLoader with workers."""

AUTOTUNED = ("workers", "max_queue_size")
"""The knobs that `tf.data` can set itself."""

_OF_LOADERS = ("prefetch_factor",)  # knobs that the `**kwargs` of a PyDataset do not take
_LOWEST = {"batch_size": 1, "workers": 0, "max_queue_size": 1, "prefetch_factor": 1}
_MIN_PREFETCH_BATCHES = 1  # for tf.data if the config has no queue: Keras itself keeps one batch ready


def knobs_of(data: Any, fixed: Mapping[str, Any]) -> dict[str, str]:
    """The knobs that the data takes and that the user does not fix, each with its name there.

    A factory takes a knob if it has a parameter with one of the knob's `NAMES`, or `**kwargs`. `fixed` (the `data_kwargs`)
    and the keywords of a `functools.partial` fix a knob. A ready-made PyDataset takes the knobs that it has as
    attributes; arrays take none.
    """
    if not callable(data):
        return {knob: knob for knob in KNOBS if prebuilt.is_pydataset(data) and prebuilt.can_set(data, knob)}
    given = set(fixed)
    factory = data
    while isinstance(factory, functools.partial):
        given |= set(factory.keywords)
        factory = factory.func
    parameters = inspect.signature(data).parameters.values()
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    knobs = {}
    for knob, names in NAMES.items():
        taken = next((name for name in names if name in named), knob if takes_any and knob not in _OF_LOADERS else None)
        if taken is not None and not given & set(names):
            knobs[knob] = taken
    return knobs


def required_of(data: Any, names: Iterable[str]) -> tuple[str, ...]:
    """Those of the names that are required parameters of a factory."""
    if not callable(data):
        return ()
    parameters = inspect.signature(data).parameters
    return tuple(name for name in names if name in parameters and parameters[name].default is inspect.Parameter.empty)


def defaults_of(data: Any, names: Mapping[str, str], *, autotunes: bool) -> dict[str, int]:
    """The data's own values of its knobs: the defaults of a factory's parameters, or an object's attributes.

    Values that a config cannot have, such as None, are left out; AUTOTUNE as well, unless the data `autotunes`.
    """
    if callable(data):
        parameters = inspect.signature(data).parameters
        given = {knob: parameters[name].default for knob, name in names.items() if name in parameters}
    else:
        given = {knob: getattr(data, name, None) for knob, name in names.items()}
    return {knob: value for knob, value in given.items() if _is_value(knob, value, autotunes=autotunes)}


def _is_value(knob: str, value: Any, *, autotunes: bool) -> bool:
    """Whether a knob may have a value."""
    if isinstance(value, bool) or not isinstance(value, int) or knob == "use_multiprocessing":
        return knob == "use_multiprocessing" and isinstance(value, bool)
    return value >= _LOWEST[knob] or (autotunes and knob in AUTOTUNED and value == AUTOTUNE)


def with_defaults(config: FitConfig, defaults: Mapping[str, int]) -> FitConfig:
    """Fill the knobs of a config that are None with the data's own values, or else Keras's."""
    return FitConfig.of({**KERAS_DEFAULTS.values(), **defaults, **config.values()})


def as_written(config: FitConfig, data: Any, names: Mapping[str, str]) -> FitConfig:
    """A config that leaves the data as the user wrote it: a knob that is None keeps the data's own value, if it has one.

    The batch size is always set, because it is an argument of `fit` for arrays.
    """
    required = required_of(data, names.values())
    whole = with_defaults(config, {"prefetch_factor": PREFETCH_FACTOR, **defaults_of(data, names, autotunes=False)})
    needed = {"batch_size", *(knob for knob, name in names.items() if name in required)}
    return FitConfig.of({**{knob: value for knob, value in whole.values().items() if knob in needed}, **config.values()})


def arguments_of(names: Mapping[str, str], config: FitConfig) -> dict[str, Any]:
    """The arguments that apply a config to a factory, given the knobs that it takes, each with its name there.

    Without a queue (`FitConfig.has_queue`), tf.data prefetches one batch and a DataLoader takes no `prefetch_factor`.
    """
    values: dict[str, Any] = {knob: value for knob, value in config.values().items() if knob in names}
    if "max_queue_size" in values and not config.has_queue:
        values["max_queue_size"] = _MIN_PREFETCH_BATCHES
    if "prefetch_factor" in values and not config.has_queue:
        values["prefetch_factor"] = None
    if names.get("use_multiprocessing") == _PERSISTENT:
        values["use_multiprocessing"] = config.has_queue
    return {names[knob]: value for knob, value in values.items()}
