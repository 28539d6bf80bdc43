"""Training or validation data under one config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Protocol

from autofit.records.trial import FitConfig


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
