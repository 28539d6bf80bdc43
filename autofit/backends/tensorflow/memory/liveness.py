"""Liveness walk: run a program's operations on an allocator, as an executor would order them; what is in use at most?

A buffer is live from the start of the operation that makes it until the last operation that reads it has ended. The order
matters: a few workers take what is ready, first come first served, and what runs at the same time is live at the same
time. Real durations vary from step to step, so that several steps are walked with varied ones, and the largest counts.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autofit.backends.tensorflow.memory.allocator import FIRST_REGION_BYTES, BestFitAllocator
from autofit.backends.tensorflow.memory.program import OUTSIDE, PARTS, Operation, Program

STEPS = 16
"""Steps that are walked: enough for most of the ways in which operations overlap."""

_EXPENSIVE_SECONDS = 8e-6  # executor.cc calls 8,000 cycles expensive; 5 µs of a duration here are overhead
_DEVIATION = 0.5  # of the logarithm of a duration: on two shared cores an operation takes half or twice as long


@dataclass(frozen=True)
class Peak:
    """The most in use at once, bytes, and what it was held for then; the parts sum up to the total."""

    total_bytes: int
    bytes_by_part: Mapping[str, int]


def peak(
    program: Program, *, workers: int = 2, steps: int = STEPS, seed: int = 0, region_bytes: int = FIRST_REGION_BYTES
) -> Peak:
    """Walk so many steps one after another and return the largest peak.

    Args:
        program: the traced step.
        workers: operations that may run at the same time.
        steps: steps to walk; the allocator keeps its state from one to the next.
        seed: of the varied durations.
        region_bytes: the allocator's first region.
    """
    memory = _Memory(program, BestFitAllocator(region_bytes))
    plan, chance = _Plan(program), random.Random(seed)
    found: list[tuple[int, dict[str, int]]] = []
    for _ in range(steps):
        memory.begin_step(plan.readers)
        plan.run(workers, memory.start, memory.end, lambda: chance.lognormvariate(0, _DEVIATION))
        memory.end_step()
        found.append((memory.peak_bytes, memory.parts_at_peak))
    total, parts = max(found, key=lambda step: step[0])
    return Peak(total, parts)


class _Plan:
    """Which operation waits for which, worked out once for all steps."""

    def __init__(self, program: Program) -> None:
        self._operations = program.operations
        made_by = {value: number for number, op in enumerate(program.operations) for value in op.outputs}
        self._waits = [0] * len(program.operations)
        self._followers: list[list[int]] = [[] for _ in program.operations]
        self.readers = [0] * len(program.values)
        for number, op in enumerate(program.operations):
            before = {*op.after, *(made_by[value] for value in op.inputs if value in made_by)}
            self._waits[number] = len(before)
            for other in before:
                self._followers[other].append(number)
            for value in op.inputs:
                self.readers[value] += 1
        for value in program.results:
            self.readers[value] += 1

    def run(
        self, workers: int, start: Callable[[Operation], None], end: Callable[[Operation], None], vary: Callable[[], float]
    ) -> None:
        """Call `start` and `end` of every operation in the order in which so many workers would come to them.

        As TensorFlow's executor does it (tensorflow/core/common_runtime/executor.cc): a worker goes on with the cheap
        operations that it has made ready, first come first served; of the expensive ones it keeps the last for itself and
        puts the others on top of its stack, from whose bottom an idle worker steals. A single worker keeps them all.
        """
        waits = list(self._waits)
        stacks: list[deque[int]] = [deque() for _ in range(workers)]
        inline: list[deque[int]] = [deque() for _ in range(workers)]
        for index, number in enumerate(n for n, count in enumerate(waits) if count == 0):
            stacks[index % workers].append(number)
        running: list[tuple[float, int, int]] = []
        idle = list(range(workers))
        now = 0.0
        while True:
            for worker in list(idle):
                found = _next(worker, inline, stacks)
                if found is not None:
                    idle.remove(worker)
                    start(self._operations[found])
                    heapq.heappush(running, (now + self._operations[found].seconds * vary(), worker, found))
            if not running:
                return
            now, worker, number = heapq.heappop(running)
            end(self._operations[number])
            idle.append(worker)
            expensive = None
            for follower in self._followers[number]:
                waits[follower] -= 1
                if waits[follower] > 0:
                    continue
                if workers == 1 or self._operations[follower].seconds < _EXPENSIVE_SECONDS:
                    inline[worker].append(follower)
                    continue
                if expensive is not None:
                    stacks[worker].appendleft(expensive)
                expensive = follower
            if expensive is not None:
                (stacks[worker].appendleft if inline[worker] else inline[worker].append)(expensive)


def _next(worker: int, inline: list[deque[int]], stacks: list[deque[int]]) -> int | None:
    """What a worker does next: its cheap operations, the top of its stack, the bottom of another's."""
    for own in (inline[worker], stacks[worker]):
        if own:
            return own.popleft()
    return next((stack.pop() for stack in stacks if stack), None)


class _Memory:
    """The buffers of one step after another, on an allocator that also holds what outlives the steps."""

    def __init__(self, program: Program, allocator: BestFitAllocator) -> None:
        self._program, self._allocator = program, allocator
        self._in_use = dict.fromkeys(PARTS, 0)
        for part, sizes in program.held_bytes.items():
            for size in sizes:
                self._in_use[part] += self._allocator.size_of(self._allocator.allocate(size))
        self.begin_step([0] * len(program.values))

    def begin_step(self, readers: list[int]) -> None:
        """Forget the step before; `readers` are how many operations read each value."""
        self._readers = readers
        self._buffers = [OUTSIDE] * len(readers)  # the address behind each value
        self._left: dict[int, int] = {}  # by address: readings to come, and operations that are making it
        self._part: dict[int, str] = {}
        self._workspaces: dict[Operation, list[int]] = {}
        self.peak_bytes, self.parts_at_peak = 0, dict(self._in_use)

    def start(self, op: Operation) -> None:
        """Give an operation its outputs and its workspace."""
        for index, output in enumerate(op.outputs):
            address = self._place_for(op, output, first=index == 0)
            self._buffers[output] = address
            if address != OUTSIDE:
                self._left[address] = self._left.get(address, 0) + 1 + self._readers[output]
        if op.workspace_bytes:
            self._workspaces[op] = [self._take(size, "temporaries") for size in op.workspace_bytes]
        if self._allocator.in_use_bytes > self.peak_bytes:
            self.peak_bytes, self.parts_at_peak = self._allocator.in_use_bytes, dict(self._in_use)

    def end(self, op: Operation) -> None:
        """Take back the workspace, and every buffer that nobody will read any more."""
        for address in self._workspaces.pop(op, ()):
            self._drop(address)
        for value in (*op.inputs, *op.outputs):
            self._read(value)

    def end_step(self) -> None:
        """Take back the results."""
        for value in self._program.results:
            self._read(value)

    def _place_for(self, op: Operation, output: int, *, first: bool) -> int:
        value = self._program.values[output]
        if value.alias_of is not None:
            return self._buffers[value.alias_of]
        if value.size_bytes == 0:
            return OUTSIDE
        for candidate in op.may_overwrite if first else ():
            address = self._buffers[candidate]
            if address != OUTSIDE and self._left[address] == 1:
                return address
        return self._take(value.size_bytes, value.part)

    def _take(self, size: int, part: str) -> int:
        address = self._allocator.allocate(size)
        self._part[address] = part
        self._in_use[part] += self._allocator.size_of(address)
        return address

    def _drop(self, address: int) -> None:
        self._in_use[self._part.pop(address)] -= self._allocator.size_of(address)
        self._allocator.release(address)

    def _read(self, value: int) -> None:
        address = self._buffers[value]
        if address != OUTSIDE:
            self._left[address] -= 1
            if self._left[address] == 0:
                del self._left[address]
                self._drop(address)
