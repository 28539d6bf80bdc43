"""A train step as a program of operations on buffers: what the liveness walk runs, whatever traced it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PARTS = ("weights", "optimizer", "gradients", "activations", "temporaries", "input_batch")
"""What a byte of device memory is held for."""

OUTSIDE = -1


@dataclass(frozen=True)
class Value:
    """One tensor.

    `part` is one of `PARTS`. `alias_of` is the index of the value whose buffer it shares; None for a buffer of its own.
    What lives outside the step (a variable, a constant) is no value of it: its index is `OUTSIDE`.
    """

    size_bytes: int
    part: str = "temporaries"
    alias_of: int | None = None


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation: it starts when `inputs` and `after` are done, and holds `workspace_bytes` while it makes `outputs`.

    `may_overwrite` are the inputs whose buffer the first output takes over when nobody else will read it. `seconds` is a
    rough duration that decides only which operations overlap.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    after: tuple[int, ...] = ()
    workspace_bytes: tuple[int, ...] = ()
    may_overwrite: tuple[int, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Program:
    """A traced step for one batch size; `held_bytes` are the buffers that live before and after it, by part."""

    values: tuple[Value, ...]
    operations: tuple[Operation, ...]
    results: frozenset[int]
    held_bytes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
