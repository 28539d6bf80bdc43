"""A train step as a program of operations on buffers, independent of the backend that traced it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autofit.records.description import DATA_PART

PARTS = (DATA_PART, "weights", "optimizer", "gradients", "activations", "temporaries", "input_batch")
"""The purposes that device memory is attributed to."""

OUTSIDE = -1


@dataclass(frozen=True)
class Value:
    """One tensor, or a variable.

    `part` is one of `PARTS`. `alias_of` is the index of the value whose buffer it shares; None for a buffer of its own.
    Tensors that live outside the step, such as constants, have the index `OUTSIDE` instead. A variable outlives the step.
    """

    size_bytes: int
    part: str = "temporaries"
    alias_of: int | None = None
    is_variable: bool = False


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation: it starts when `inputs` and `after` are done, and holds `workspace_bytes` while it runs.

    The output `overwriting` takes over the buffer of an input in `may_overwrite` that has no other reader left. `updates`
    is the variable that the operation changes: it gets a buffer of its own where its present one has other readers, or the
    buffer of the value `assigned`. `seconds` is a rough duration, which decides only which operations overlap.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    after: tuple[int, ...] = ()
    workspace_bytes: tuple[int, ...] = ()
    may_overwrite: tuple[int, ...] = ()
    overwriting: int = 0
    seconds: float = 0.0
    updates: int = OUTSIDE
    assigned: int = OUTSIDE


@dataclass(frozen=True)
class Program:
    """A traced step for one batch size; `held_bytes` are the sizes of the buffers that outlive it, by part."""

    values: tuple[Value, ...]
    operations: tuple[Operation, ...]
    results: frozenset[int]
    held_bytes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
