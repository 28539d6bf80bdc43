"""Find the peak memory of a program of operations by simulating the program on a model of the allocator.

A buffer is live from the start of the operation that produces it until the last operation that reads it has ended. Buffers
of operations that overlap are live together, so the walk schedules operations on as many workers as TensorFlow has threads;
a free worker takes the operation that became ready last. Durations vary from step to step, and so do the overlaps.
Therefore the walk repeats the step with random durations and keeps the highest peak.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autofit.backends.tensorflow.memory.allocator import FIRST_REGION_BYTES, BestFitAllocator
from autofit.records.description import DATA_PART

PARTS = (DATA_PART, "weights", "optimizer", "gradients", "activations", "temporaries", "input_batch")
"""The purposes that device memory is attributed to."""

OUTSIDE = -1
"""Stands for a tensor that lives outside the step, such as a constant."""

_RUNS, _STEPS = 3, 3  # a single step underestimates by 5% on average (measured: tests/benchmarks/memory-parts.txt)
_DRAFTS = 2  # additional buffers that a weight needs while its initial value is computed
_DEVIATION = 0.5  # of a duration's logarithm: on busy cores an operation may take half or twice as long


@dataclass(frozen=True)
class Value:
    """A tensor, or a variable, which outlives the step. `alias_of` is the index of the value whose buffer it shares."""

    size_bytes: int
    part: str = "temporaries"
    alias_of: int | None = None
    is_variable: bool = False


@dataclass(frozen=True, eq=False)
class Operation:
    """An operation: it starts when `inputs` and `after` are done, and holds `workspace_bytes` while it runs.

    The output with the index `overwriting` takes over the buffer of an input in `may_overwrite` that has no other reader
    left. The operation changes the variable `updates`: it gets the buffer of the value `assigned` or, if there is none, a
    new buffer if its present one has other readers. `seconds` is a rough duration that only decides which operations
    overlap.
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
    """A traced step for one batch size; `held_bytes` are the sizes of the buffers that outlive the step, by part."""

    values: Sequence[Value]
    operations: Sequence[Operation]
    results: frozenset[int]
    held_bytes: Mapping[str, Sequence[int]] = field(default_factory=dict)


def peak(
    program: Program,
    *,
    workers: int = 2,
    region_bytes: int = FIRST_REGION_BYTES,
    least_bytes: int = 1,
    runs: int = _RUNS,
    steps: int = _STEPS,
) -> Mapping[str, int]:
    """Return the highest peak of several walks through a program: the bytes of each part.

    `workers` operations may run at the same time. `least_bytes` is the smallest buffer that the allocator counts. The walk
    simulates `runs` trainings of `steps` steps. The first step of each training gives each optimizer variable a buffer.
    """
    producers = {value: number for number, op in enumerate(program.operations) for value in op.outputs}
    followers: list[list[int]] = [[] for _ in program.operations]
    waits = []  # for each operation, the number of operations that it waits for
    for number, op in enumerate(program.operations):
        before = {*op.after, *(producers[value] for value in op.inputs if value in producers)}
        waits.append(len(before))
        for other in before:
            followers[other].append(number)
    peaks, chance = [], random.Random(0)
    for _ in range(runs):
        memory = _Memory(program, BestFitAllocator(region_bytes), least_bytes)
        for _ in range(steps):
            memory.run_step(list(waits), followers, workers, chance)
        peaks.append(memory.peak)
    return max(peaks, key=lambda peak: sum(peak.values()))


class _Memory:
    """The buffers of consecutive steps, on an allocator that also holds the buffers that outlive the steps."""

    def __init__(self, program: Program, allocator: BestFitAllocator, least_bytes: int) -> None:
        self._program, self._allocator, self._least_bytes = program, allocator, least_bytes
        self._in_use = dict.fromkeys(PARTS, 0)
        self._peak_bytes, self.peak = 0, dict(self._in_use)
        self._left: Counter[int] = Counter()  # by address: pending reads, plus one per variable and running writer
        self._part: dict[int, str] = {}
        self._workspaces: dict[Operation, list[int]] = {}
        self._replaced: dict[Operation, int] = {}
        self._readers = Counter((*(value for op in program.operations for value in op.inputs), *program.results))
        self._address = [OUTSIDE] * len(program.values)
        zeros: dict[int, int] = {}  # by size: as in TensorFlow, optimizer variables of one size first share one buffer
        for number, value in enumerate(program.values):
            if value.is_variable:
                shared = zeros.get(value.size_bytes) if value.part == "optimizer" else None
                address = self._make(value.size_bytes, value.part) if shared is None else shared
                self._address[number] = zeros[value.size_bytes] = address
                if address != OUTSIDE:
                    self._left[address] += 1
        for part, sizes in program.held_bytes.items():
            for size in sizes:
                self._make(size, part)
        self._record()

    def _make(self, size: int, part: str) -> int:
        """Allocate a buffer that outlives the step; a weight takes two more while it is drawn, scaled and shifted."""
        drafts = [self._take(size, "temporaries") for _ in range(_DRAFTS if part == "weights" else 0)]
        address = self._take(size, part)
        self._record()
        for draft in drafts:
            self._drop(draft)
        return address

    def run_step(self, waits: list[int], followers: Sequence[Sequence[int]], workers: int, chance: random.Random) -> None:
        """Run all operations; `waits` counts what each operation waits for, `followers` lists those that wait for it."""
        operations = self._program.operations
        ready = [number for number, count in enumerate(waits) if count == 0]
        running: list[tuple[float, int]] = []  # end time and number of each operation
        now = 0.0
        while ready or running:
            while ready and len(running) < workers:
                number = ready.pop()
                self._start(operations[number])
                seconds = operations[number].seconds * chance.lognormvariate(0, _DEVIATION)
                heapq.heappush(running, (now + seconds, number))
            now, number = heapq.heappop(running)
            self._end(operations[number])
            for follower in followers[number]:
                waits[follower] -= 1
                if waits[follower] == 0:
                    ready.append(follower)
        for result in self._program.results:
            self._read(self._address[result])
        # only variables keep their addresses
        values = zip(self._program.values, self._address, strict=True)
        self._address = [address if value.is_variable else OUTSIDE for value, address in values]

    def _start(self, op: Operation) -> None:
        for index, output in enumerate(op.outputs):
            address = self._place(op, output, overwrites=index == op.overwriting)
            self._address[output] = address
            if address != OUTSIDE:
                self._left[address] += 1 + self._readers[output]
        if op.workspace_bytes:
            self._workspaces[op] = [self._take(size, "temporaries") for size in op.workspace_bytes]
        if op.updates != OUTSIDE:
            self._update(op)
        self._record()

    def _update(self, op: Operation) -> None:
        """Move a changed variable to the buffer assigned to it, or to a new one if the present one has other readers."""
        old, variable = self._address[op.updates], self._program.values[op.updates]
        if old == OUTSIDE:
            return
        new = self._address[op.assigned] if op.assigned != OUTSIDE else OUTSIDE
        if new == OUTSIDE:
            if op.assigned != OUTSIDE or self._left[old] == 1:
                return
            new = self._take(variable.size_bytes, variable.part)
        self._left[new] += 1
        size = self._allocator.size_of(new)
        self._in_use[self._part[new]] -= size
        self._in_use[variable.part] += size
        self._part[new] = variable.part
        self._address[op.updates], self._replaced[op] = new, old

    def _end(self, op: Operation) -> None:
        """Free the operation's workspace, and every buffer without pending reads."""
        for address in self._workspaces.pop(op, ()):
            self._drop(address)
        self._read(self._replaced.pop(op, OUTSIDE))
        for value in (*op.inputs, *op.outputs):
            self._read(self._address[value])

    def _read(self, address: int) -> None:
        if address != OUTSIDE:
            self._left[address] -= 1
            if self._left[address] == 0:
                del self._left[address]
                self._drop(address)

    def _record(self) -> None:
        in_use_bytes = sum(self._in_use.values())
        if in_use_bytes > self._peak_bytes:
            self._peak_bytes, self.peak = in_use_bytes, dict(self._in_use)

    def _place(self, op: Operation, output: int, *, overwrites: bool) -> int:
        value = self._program.values[output]
        if value.alias_of is not None:
            return self._address[value.alias_of]
        for candidate in op.may_overwrite if overwrites else ():
            address = self._address[candidate]
            if address != OUTSIDE and self._left[address] == 1:
                return address
        return self._take(value.size_bytes, value.part)

    def _take(self, size: int, part: str) -> int:
        if size < self._least_bytes:
            return OUTSIDE
        address = self._allocator.allocate(size)
        self._part[address] = part
        self._in_use[part] += self._allocator.size_of(address)
        return address

    def _drop(self, address: int) -> None:
        if address != OUTSIDE:
            self._in_use[self._part.pop(address)] -= self._allocator.size_of(address)
            self._allocator.release(address)
