"""Arrays (x, y) or (x, y, sample_weight): `batch_size` is an argument of `fit`, and there is no other knob."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from autofit.errors import UsageError
from autofit.records.trial import FitConfig
from autofit.workload.inputs.batch import leaves, mapped
from autofit.workload.inputs.fit_input import FitInput


class Arrays(FitInput):
    """Arrays (x, y) or (x, y, sample_weight) in memory, nested or not; the first axis counts the samples.

    Raises:
        UsageError: the arrays do not agree on the number of samples, or there are none.
    """

    kind: ClassVar[str] = "arrays"
    fit_knobs: ClassVar[tuple[str, ...]] = ("batch_size",)
    ends_by_itself: ClassVar[bool] = False

    def __init__(
        self, data: Any, config: FitConfig, report_error: Callable[[BaseException], None], reopen: Callable[[], Any] | None
    ) -> None:
        lengths = sorted({len(leaf) for leaf in leaves(data)})
        if len(lengths) != 1 or lengths[0] == 0:
            raise UsageError(
                f"the arrays do not have the same number of samples, at least one: their lengths are {lengths}"
            )
        self._data = tuple(data)
        self._count = lengths[0]
        self.batch_samples = min(config.batch_size or 32, self._count)
        self.applied = FitConfig(batch_size=self.batch_samples)

    @staticmethod
    def recognises(data: Any) -> bool:
        """Whether `data` is a tuple of two or three (nests of) NumPy arrays."""
        return (
            isinstance(data, tuple | list)
            and len(data) in (2, 3)
            and all(isinstance(leaf, np.ndarray) and leaf.ndim > 0 for leaf in leaves(data))
        )

    def knobs(self, named: Mapping[str, str]) -> dict[str, str]:
        """What `fit` takes, whatever a function that returns the arrays takes."""
        return {knob: knob for knob in self.fit_knobs}

    def batch(self) -> tuple[Any, ...]:
        """The first full batch, copied from the mapped file."""
        return tuple(mapped(part, lambda a: np.array(a[: self.batch_samples])) for part in self._data)

    def sample_count(self) -> int | None:
        """The length of the first axis."""
        return self._count

    def fit_arguments(self, steps: int) -> dict[str, Any]:
        """All full batches, for as many epochs as the steps take: a part of them would take less memory."""
        per_epoch = self._count // self.batch_samples
        whole = tuple(mapped(part, lambda a: a[: per_epoch * self.batch_samples]) for part in self._data)
        names = ("x", "y", "sample_weight")
        return {
            **dict(zip(names, whole, strict=False)),
            "batch_size": self.batch_samples,
            "epochs": math.ceil(steps / per_epoch),
        }

    def validation_arguments(self, steps: int) -> dict[str, Any]:
        """All arrays, evaluated for at most so many steps."""
        return {
            "validation_data": self._data,
            "validation_steps": min(steps, math.ceil(self._count / self.batch_samples)),
            "validation_batch_size": self.batch_samples,
        }
