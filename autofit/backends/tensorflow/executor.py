"""Find the highest sum of live buffers as TensorFlow's executor runs operations: threads, and a stack of what is ready.

Durations vary from step to step, and so do the overlaps: the highest of several runs with random durations counts. With two
threads a single run would do, with eight it is up to a third too low (measured: tests/benchmarks/memory-parts.txt).
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(eq=False)
class Buffer:
    """Memory of a tensor, and of all tensors that share it, such as its reshaped forms."""

    size_bytes: int
    part: str


@dataclass(eq=False)
class Operation:
    """An operation starts when those with the numbers `after` have ended, and holds its workspace while it runs."""

    reads: list[Buffer]
    makes: list[Buffer]  # new; each takes over the memory of one in `reuses` that has its size and no other reader left
    after: Collection[int]
    reuses: list[Buffer]
    workspace_bytes: int
    seconds: float  # a rough duration that only decides which operations overlap


_RUNS, _DEVIATION = 3, 0.5  # of a duration's logarithm: on busy cores an operation takes half or twice as long


def peak(operations: Sequence[Operation], results: Sequence[Buffer], threads: int) -> Mapping[str, int]:
    """Return the bytes of each part at the highest peak of several steps; see `_run`."""
    chance = random.Random(0)
    runs = [_run(operations, results, threads, chance) for _ in range(_RUNS)]
    return max(runs, key=lambda parts: sum(parts.values()))


def _run(
    operations: Sequence[Operation], results: Sequence[Buffer], threads: int, chance: random.Random
) -> Mapping[str, int]:
    """Return the bytes of each part at the peak of a step. `threads` operations run at the same time."""
    # A buffer is live from the start of the operation that makes it until the last operation that reads it has ended;
    # `results` stay. A free thread takes the operation that became ready last.
    left = Counter(buffer for op in operations for buffer in (*op.reads, *op.makes)) + Counter(results)
    waits = [len(op.after) for op in operations]
    followers: list[list[int]] = [[] for _ in operations]
    for number, op in enumerate(operations):
        for earlier in op.after:
            followers[earlier].append(number)
    ready = [number for number, count in enumerate(waits) if not count]
    running: list[tuple[float, int]] = []  # end and number of each operation
    live: set[Buffer] = set()
    in_use: Counter[str] = Counter()
    now, highest, at_peak = 0.0, 0, dict(in_use)

    def release(buffer: Buffer) -> None:
        live.discard(buffer)
        in_use[buffer.part] -= buffer.size_bytes

    while ready or running:
        while ready and len(running) < threads:
            number = ready.pop()
            op = operations[number]
            for buffer in op.makes:
                same = (b for b in op.reuses if b in live and left[b] == 1 and b.size_bytes == buffer.size_bytes)
                if (reused := next(same, None)) is not None:
                    release(reused)
                live.add(buffer)
                in_use[buffer.part] += buffer.size_bytes
            in_use["temporaries"] += op.workspace_bytes
            if in_use.total() > highest:
                highest, at_peak = in_use.total(), dict(in_use)
            heapq.heappush(running, (now + op.seconds * chance.lognormvariate(0, _DEVIATION), number))
        now, number = heapq.heappop(running)
        op = operations[number]
        in_use["temporaries"] -= op.workspace_bytes
        for buffer in (*op.reads, *op.makes):
            left[buffer] -= 1
            if not left[buffer] and buffer in live:
                release(buffer)
        for follower in followers[number]:
            waits[follower] -= 1
            if not waits[follower]:
                ready.append(follower)
    return at_peak
