"""The calls of `fit` of a script that has several, and which of them is tuned."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autofit.errors import UsageError
from autofit.records.units import counted
from autofit.workload.inputs.batch import leaves, length_of
from autofit.workload.script.marks import texts

_MOST_STEPS_SHARE = 0.9  # of all steps: the call that has them is the one that is meant
_KERAS_BATCH = 32


@dataclass(frozen=True)
class FitCall:
    """A call of `fit`, with the number of its epochs and of the steps in each; 0 if that is not
    known.
    """

    where: str
    epochs: int
    steps: int

    @property
    def all_steps(self) -> int:
        return self.epochs * self.steps

    def __str__(self) -> str:
        steps = f" of {counted(self.steps, 'step')}" if self.steps else ""
        return f"{self.where}, {counted(self.epochs, 'epoch')}{steps}"


def is_written_often() -> bool:
    """Return whether the user's files that are loaded have more than one call of a method `fit`."""
    count = 0
    for text in texts.values():
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Call(ast.Attribute(_, "fit")):
                    count += 1
    return count > 1


def call_of(where: str, arguments: Mapping[str, Any]) -> FitCall:
    """Return a call of `fit` with these arguments."""
    epochs = arguments.get("epochs") or 1
    steps = arguments.get("steps_per_epoch") or _steps_of(arguments)
    return FitCall(where, epochs, steps)


def _steps_of(arguments: Mapping[str, Any]) -> int:
    x: Any = arguments.get("x")
    if hasattr(x, "cardinality"):
        return max(0, int(x.cardinality()))
    arrays = [leaf for leaf in leaves(x) if hasattr(leaf, "shape")]
    if arrays:
        size = arguments.get("batch_size") or _KERAS_BATCH
        return math.ceil(length_of(arrays[0]) / size)
    return len(x) if hasattr(x, "__len__") else 0


def chosen(script: str, calls: Sequence[FitCall]) -> int:
    """Return the number of the call that is tuned, from 1; raise UsageError if the user must
    choose.
    """
    longest = max(calls, key=lambda call: call.all_steps)
    there = [call for call in calls if call.where == longest.where]
    # as of folds, or of training after a short warm-up
    is_clear = len(there) == len(calls)
    if all(call.steps for call in calls):
        share = _MOST_STEPS_SHARE * sum(call.all_steps for call in calls)
        is_clear |= sum(call.all_steps for call in there) >= share
    if is_clear:
        return calls.index(longest) + 1
    listed = [
        f"    --fit {calls.index(call) + 1}: {call}\n" for call in dict.fromkeys(calls)
    ]
    raise UsageError(
        f"{script} calls fit {len(calls)} times; choose one:\n\n{''.join(listed)}"
    )
