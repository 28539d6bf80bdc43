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
from autofit.workload.script.run import texts

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

    def __str__(self) -> str:
        steps = f" of {counted(self.steps, 'step')}" if self.steps else ""
        return f"{self.where}, {counted(self.epochs, 'epoch')}{steps}"


def is_written_often() -> bool:
    """Return whether the user's files that are loaded have more than one call of a method `fit`."""
    calls = [
        node
        for text in texts.values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "fit"
    ]
    return len(calls) > 1


def call_of(where: str, arguments: Mapping[str, Any]) -> FitCall:
    """Return a call of `fit` with these arguments."""
    epochs = arguments.get("epochs") or 1
    return FitCall(where, epochs, arguments.get("steps_per_epoch") or _steps_of(arguments))


def _steps_of(arguments: Mapping[str, Any]) -> int:
    x: Any = arguments.get("x")
    if hasattr(x, "cardinality"):
        return max(0, int(x.cardinality()))
    if not hasattr(x, "shape") and hasattr(x, "__len__") and not isinstance(x, dict | list | tuple):
        return len(x)
    samples = next((length_of(leaf) for leaf in leaves(x) if hasattr(leaf, "shape")), 0)
    return math.ceil(samples / (arguments.get("batch_size") or _KERAS_BATCH))


def chosen(script: str, calls: Sequence[FitCall]) -> int:
    """Return the number of the call that is tuned, from 1; raise UsageError if the user must
    choose.
    """
    steps = [call.epochs * call.steps for call in calls]
    lines = {call.where for call in calls}
    most = max(range(len(calls)), key=lambda index: steps[index])
    same = sum(n for call, n in zip(calls, steps, strict=True) if call.where == calls[most].where)
    if len(lines) == 1 or (all(steps) and same >= _MOST_STEPS_SHARE * sum(steps)):
        return most + 1
    numbers = {call: number for number, call in reversed([*enumerate(calls, 1)])}
    listed = "\n".join(f"    --fit {numbers[call]}: {call}" for call in dict.fromkeys(calls))
    raise UsageError(f"{script} calls fit {len(calls)} times; choose one:\n\n{listed}\n")
