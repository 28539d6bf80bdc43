"""One file per kind of input: which knobs it takes, how a `FitConfig` is applied to it, which kwargs to render.

A new kind (a `tf.data.Dataset`, a generator, a `tf_keras` Sequence) is a new file with a class like those here, and a
line in `KINDS`. The classes load Keras only in the methods that a trial's process calls.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

from autofit.errors import UnsupportedInputError
from autofit.inputs.arrays import Arrays
from autofit.inputs.pydataset import PyDatasetInput
from autofit.records import KNOBS, FitConfig

__all__ = ["KINDS", "FitInput", "knobs_of", "open_input", "render_kwargs"]


class FitInput(Protocol):
    """Training or validation data under one `FitConfig`, in a trial's process."""

    kind: ClassVar[str]
    batch_samples: int
    """Samples in a full batch."""
    applied: FitConfig
    """The knobs as they are in the data, whoever set them; those that it does not have are None."""
    ends_by_itself: ClassVar[bool]
    """Whether `fit` ends after exactly the steps that `fit_arguments` was asked for."""
    batch_seconds: float
    """How long one producer took for the first batch; 0 where no code of the user's runs."""

    def batch(self) -> tuple[Any, ...]:
        """One full batch of arrays, (x, y) or (x, y, sample_weight)."""

    def sample_count(self) -> int | None:
        """Samples in one epoch; None if unknown."""

    def fit_arguments(self, steps: int) -> dict[str, Any]:
        """Arguments that make `fit` train on it for about so many steps (an input may have more)."""

    def validation_arguments(self, steps: int) -> dict[str, Any]:
        """Arguments that make `fit` validate on it for at most so many steps."""

    def batches_made(self) -> int | None:
        """How many batches the pipeline has produced so far; None if it does not count."""


KINDS: dict[str, type[Arrays] | type[PyDatasetInput]] = {kind.kind: kind for kind in (Arrays, PyDatasetInput)}


def knobs_of(data: Any, fixed: Mapping[str, Any]) -> tuple[str, ...]:
    """The knobs that a data factory takes and that are not fixed by the user; none for arrays.

    A factory takes a knob when it has a parameter of that name, or `**kwargs`. A knob is fixed by `fixed` (the
    `data_kwargs`) or as a keyword of a `functools.partial`.
    """
    if not callable(data):
        return ()
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
    return tuple(knob for knob in KNOBS if knob not in given and (takes_any or knob in named))


def open_input(
    data: Any, kwargs: Mapping[str, Any], config: FitConfig, report_error: Callable[[BaseException], None]
) -> FitInput:
    """Build the user's data under a config.

    Args:
        data: (x, y) arrays, or a factory.
        kwargs: what the user passes to the factory beside the knobs.
        config: the knobs; those that the factory does not take are ignored.
        report_error: called with what the user's `__getitem__` raises, where it raises (a thread or another process).

    Raises:
        UnsupportedInputError: the data is of no known kind.
        Exception: whatever the user's factory raises.
    """
    given = {knob: value for knob, value in config.values().items() if knob in knobs_of(data, kwargs)}
    if callable(data):
        data = data(**kwargs, **given)
    for kind in KINDS.values():
        if kind.recognises(data):
            opened: FitInput = kind(data, config if kind.knobs_go_to_fit else FitConfig.of(given), report_error)
            return opened
    raise UnsupportedInputError(
        f"the data is a {type(data).__module__}.{type(data).__qualname__}; autofit takes arrays (x, y) and factories that "
        "return a keras.utils.PyDataset. Wrap other kinds in a PyDataset"
    )


def render_kwargs(kind: str, knobs: tuple[str, ...], config: FitConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments that apply a config: (data_kwargs for the data factory, fit_kwargs for `Model.fit`)."""
    chosen = {knob: value for knob, value in config.values().items() if knob in knobs}
    return ({}, chosen) if KINDS[kind].knobs_go_to_fit else (chosen, {})
