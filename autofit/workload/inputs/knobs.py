"""The knobs that the data takes, and their names there."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from autofit.records.trial import FitConfig
from autofit.workload.inputs import prebuilt

NAMES: dict[str, tuple[str, ...]] = {
    "batch_size": ("batch_size",),
    "workers": ("workers", "num_parallel_calls"),
    "max_queue_size": ("max_queue_size", "prefetch"),
    "use_multiprocessing": ("use_multiprocessing",),
}
"""The parameter names of each knob in a factory: Keras's own, and those of tf.data."""

_MIN_PREFETCH_BATCHES = 1  # for tf.data if the config has no queue: Keras itself keeps one batch ready


def knobs_of(data: Any, fixed: Mapping[str, Any]) -> dict[str, str]:
    """The knobs that the data takes and that the user does not fix, each with its name there.

    A factory takes a knob if it has a parameter of one of the knob's `NAMES`, or `**kwargs`. `fixed` (the `data_kwargs`)
    and the keywords of a `functools.partial` fix a knob. A ready-made PyDataset takes the knobs that it has as
    attributes; arrays take none.
    """
    if not callable(data):
        return dict(prebuilt.knobs_of(data)) if prebuilt.is_pydataset(data) else {}
    given = set(fixed)
    factory = data
    while isinstance(factory, functools.partial):
        given |= set(factory.keywords)
        factory = factory.func
    parameters = inspect.signature(data).parameters.values()
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    named = {
        p.name for p in parameters if p.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    }
    knobs = {}
    for knob, names in NAMES.items():
        taken = next((name for name in names if name in named), knob if takes_any else None)
        if taken is not None and not given & set(names):
            knobs[knob] = taken
    return knobs


def required_of(data: Any, names: Iterable[str]) -> tuple[str, ...]:
    """Those of the names that are parameters of a factory without a default."""
    if not callable(data):
        return ()
    parameters = inspect.signature(data).parameters
    return tuple(name for name in names if name in parameters and parameters[name].default is inspect.Parameter.empty)


def arguments_of(names: Mapping[str, str], config: FitConfig) -> dict[str, Any]:
    """The arguments that apply a config to a factory.

    Args:
        names: the knobs that it takes, each with its name there.
        config: the values; without a queue (`FitConfig.has_queue`) tf.data prefetches one batch.
    """
    values: dict[str, Any] = {knob: value for knob, value in config.values().items() if knob in names}
    if "max_queue_size" in values and not config.has_queue:
        values["max_queue_size"] = _MIN_PREFETCH_BATCHES
    return {names[knob]: value for knob, value in values.items()}
