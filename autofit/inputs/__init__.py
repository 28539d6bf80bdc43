"""One file per kind of input: which knobs it takes, how a `FitConfig` is applied to it, which kwargs to render.

A new kind is a new file with a class like those here, and a line in `KINDS`. The classes load Keras only in the methods
that a trial's process calls.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from autofit.errors import UnsupportedInputError
from autofit.inputs import readymade
from autofit.inputs.arrays import Arrays
from autofit.inputs.generator import Generator
from autofit.inputs.pydataset import PyDatasetInput
from autofit.inputs.readymade import check
from autofit.inputs.sequence import SequenceInput
from autofit.inputs.tfdata import TfData
from autofit.records import Description, FitConfig

__all__ = [
    "KINDS",
    "FitInput",
    "arguments_of",
    "check",
    "knobs_of",
    "open_input",
    "readymade",
    "render_kwargs",
    "render_validation",
    "required_of",
]

NAMES: dict[str, tuple[str, ...]] = {
    "batch_size": ("batch_size",),
    "workers": ("workers", "num_parallel_calls"),
    "max_queue_size": ("max_queue_size", "prefetch"),
    "use_multiprocessing": ("use_multiprocessing",),
}
"""Under which names a factory may take each knob: Keras's own, and tf.data's."""

_LEAST_AHEAD = 1  # batches that tf.data prefetches where the config has no queue: what Keras itself keeps in passing


class FitInput(Protocol):
    """Training or validation data under one `FitConfig`, in a trial's process."""

    kind: ClassVar[str]
    fit_knobs: ClassVar[tuple[str, ...]]
    """The knobs that are arguments of `fit`, rather than of the factory."""
    batch_samples: int
    """Samples in a full batch."""
    applied: FitConfig
    """The knobs as they are in the data, whoever set them; those that it does not have are None."""
    ends_by_itself: ClassVar[bool]
    """Whether `fit` ends after exactly the steps that `fit_arguments` was asked for."""
    batch_seconds: float
    """How long one producer took for the first batch; 0 where no code of the user's runs."""

    def knobs(self, named: Mapping[str, str]) -> dict[str, str]:
        """The knobs that do something, each with its name, in the factory or in `fit`; `named` are the factory's."""

    def batch(self) -> tuple[Any, ...]:
        """One full batch of arrays, (x, y) or (x, y, sample_weight)."""

    def sample_count(self) -> int | None:
        """Samples in one epoch; None if unknown."""

    def fit_arguments(self, steps: int) -> dict[str, Any]:
        """Arguments that make `fit` train on it for about so many steps (an input may have more)."""

    def validation_arguments(self, steps: int) -> dict[str, Any]:
        """Arguments that make `fit` validate on it for at most so many steps."""

    def look(self) -> Iterator[tuple[Any, ...]]:
        """The batches of an epoch in turn, for whoever compares them; none where they cannot differ in shape."""

    def batches_made(self) -> int | None:
        """How many batches the pipeline has produced so far; None if it does not count."""


KINDS: dict[str, type[Arrays] | type[PyDatasetInput] | type[SequenceInput] | type[TfData] | type[Generator]] = {
    kind.kind: kind for kind in (Arrays, PyDatasetInput, SequenceInput, TfData, Generator)
}


def knobs_of(data: Any, fixed: Mapping[str, Any]) -> dict[str, str]:
    """The knobs that the data takes and that are not fixed by the user, each with the name under which it takes it.

    A factory takes a knob when it has a parameter of one of the knob's `NAMES`, or `**kwargs`. A knob is fixed by `fixed`
    (the `data_kwargs`) or as a keyword of a `functools.partial`. A ready-made PyDataset takes those that it has as
    attributes; arrays take none.
    """
    if not callable(data):
        return dict(readymade.knobs_of(data)) if readymade.is_pydataset(data) else {}
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
    found = {}
    for knob, names in NAMES.items():
        taken = next((name for name in names if name in named), knob if takes_any else None)
        if taken is not None and not given & set(names):
            found[knob] = taken
    return found


def required_of(data: Any, names: Iterable[str]) -> tuple[str, ...]:
    """Those of a factory's parameters that have no default."""
    if not callable(data):
        return ()
    parameters = inspect.signature(data).parameters
    return tuple(name for name in names if name in parameters and parameters[name].default is inspect.Parameter.empty)


def arguments_of(names: Mapping[str, str], config: FitConfig) -> dict[str, Any]:
    """The arguments that apply a config to a factory.

    Args:
        names: the knobs that it takes, each with its name there.
        config: the values; of a config without a queue (`FitConfig.has_queue`) tf.data keeps one batch ready.
    """
    values: dict[str, Any] = {knob: value for knob, value in config.values().items() if knob in names}
    if "max_queue_size" in values and not config.has_queue:
        values["max_queue_size"] = _LEAST_AHEAD
    return {names[knob]: value for knob, value in values.items()}


def open_input(
    data: Any, kwargs: Mapping[str, Any], config: FitConfig, report_error: Callable[[BaseException], None]
) -> FitInput:
    """Build the user's data under a config.

    Args:
        data: (x, y) arrays, a PyDataset, or a factory.
        kwargs: what the user passes to the factory beside the knobs.
        config: the knobs; those that the data does not take are ignored.
        report_error: called with what the user's code raises while batches are made (in a thread or another process).

    Raises:
        UnsupportedInputError: the data is of no known kind.
        Exception: whatever the user's factory raises.
    """
    names = knobs_of(data, kwargs)
    given = arguments_of(names, config)
    again = None
    if callable(data):
        again = functools.partial(data, **kwargs, **given)
    elif names:
        again = functools.partial(readymade.applier(data), **given)
    made = data if again is None else again()
    applied = {knob: given[name] for knob, name in names.items() if name in given}
    for kind in KINDS.values():
        if kind.recognises(made):
            at_fit = {knob: value for knob, value in config.values().items() if knob in kind.fit_knobs}
            opened: FitInput = kind(made, FitConfig.of({**applied, **at_fit}), report_error, again)
            return opened
    raise UnsupportedInputError(
        f"the data is a {type(made).__module__}.{type(made).__qualname__}; autofit takes arrays (x, y) and factories that "
        "return a keras.utils.PyDataset, a tf_keras.utils.Sequence, a tf.data.Dataset or a generator. Wrap others in one"
    )


def render_validation(description: Description, config: FitConfig) -> dict[str, Any]:
    """The arguments that apply a config to the validation data, without a queue as in `render_kwargs`."""
    return _written(description, description.validation_knobs, description.validation_required, config)


def _written(
    description: Description, names: Mapping[str, str], required: Sequence[str], config: FitConfig
) -> dict[str, Any]:
    """Those of `arguments_of` that do something, or have no default."""
    given = arguments_of(names, config)
    queue = names.get("max_queue_size")
    is_dead = KINDS[description.input_kind] in (PyDatasetInput, SequenceInput) and not config.has_queue
    if is_dead and queue in given and queue not in required:
        del given[queue]
    return given


def render_kwargs(
    description: Description, config: FitConfig, sample_count: int | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments that apply a config: (data_kwargs for the data factory, fit_kwargs for `Model.fit`).

    A queue that Keras does not make is left out where the factory allows.

    Args:
        description: of the workload.
        config: the knobs.
        sample_count: samples in an epoch where the user says how many, since the data does not: it gives `steps_per_epoch`.
    """
    kind = KINDS[description.input_kind]
    given = _written(description, description.knobs, description.required, config)
    to_fit = {description.knobs[knob] for knob in kind.fit_knobs if knob in description.knobs}
    fit_kwargs = {name: value for name, value in given.items() if name in to_fit}
    to_factory = set(given) - to_fit | set(description.required)
    data_kwargs = {name: value for name, value in given.items() if name in to_factory}
    if sample_count is not None and config.batch_size is not None:
        fit_kwargs["steps_per_epoch"] = math.ceil(sample_count / config.batch_size)
    return data_kwargs, fit_kwargs
