"""A model of TensorFlow's BFC allocator (best fit with coalescing), whose chunks are often larger than requested.

The rules and constants come from `tensorflow/core/common_runtime/bfc_allocator.cc` (TensorFlow 2.21): sizes are rounded
up to 256 B; an allocation takes the smallest free chunk that is large enough and splits it only if it is twice as large as
needed or 128 MiB larger; adjacent free chunks are merged; a new region is at least twice as large as the one before.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

_ALIGNMENT_BYTES = 256
FIRST_REGION_BYTES = 2 * 2**20
ONEDNN_LEAST_BYTES = 256 * 2**10
"""The smallest buffer that oneDNN's CPU allocator requests from BFC and counts (mkl_cpu_allocator.h)."""
_MOST_WASTE_BYTES = 128 * 2**20


@dataclass
class _Chunk:
    size: int
    before: int | None
    behind: int | None
    in_use: bool = False


class BestFitAllocator:
    """Assigns addresses and counts the bytes in use, without real memory.

    Args:
        region_bytes: size of the first region. A GPU's allocator reserves its limit at once.
    """

    def __init__(self, region_bytes: int = FIRST_REGION_BYTES) -> None:
        self._chunks: dict[int, _Chunk] = {}
        self._free: list[tuple[int, int]] = []
        self._end = 0
        self._next_region = region_bytes
        self.in_use_bytes = 0

    def allocate(self, size_bytes: int) -> int:
        """Return the address of a new chunk of at least `size_bytes`."""
        size = rounded(max(1, size_bytes))
        index = bisect.bisect_left(self._free, (size, -1))
        if index == len(self._free):
            self._extend(size)
            index = bisect.bisect_left(self._free, (size, -1))
        _, address = self._free.pop(index)
        chunk = self._chunks[address]
        if chunk.size >= 2 * size or chunk.size - size >= _MOST_WASTE_BYTES:
            self._split(address, size)
        chunk.in_use = True
        self.in_use_bytes += chunk.size
        return address

    def release(self, address: int) -> None:
        """Free a chunk."""
        chunk = self._chunks[address]
        chunk.in_use = False
        self.in_use_bytes -= chunk.size
        if chunk.behind is not None and not self._chunks[chunk.behind].in_use:
            self._unlist(chunk.behind)
            self._join(address, chunk.behind)
        if chunk.before is not None and not self._chunks[chunk.before].in_use:
            self._unlist(chunk.before)
            self._join(chunk.before, address)
            address = chunk.before
        bisect.insort(self._free, (self._chunks[address].size, address))

    def size_of(self, address: int) -> int:
        """Return the size of the chunk at an address, bytes."""
        return self._chunks[address].size

    def _extend(self, size: int) -> None:
        grown = False
        while size > self._next_region:
            self._next_region *= 2
            grown = True
        region = self._next_region
        if not grown:
            self._next_region *= 2
        self._end += region  # the gap between regions keeps their chunks from being merged
        self._chunks[self._end] = _Chunk(region, None, None)
        bisect.insort(self._free, (region, self._end))
        self._end += region

    def _split(self, address: int, size: int) -> None:
        chunk = self._chunks[address]
        rest = address + size
        self._chunks[rest] = _Chunk(chunk.size - size, address, chunk.behind)
        if chunk.behind is not None:
            self._chunks[chunk.behind].before = rest
        chunk.size, chunk.behind = size, rest
        bisect.insort(self._free, (self._chunks[rest].size, rest))

    def _join(self, address: int, second: int) -> None:
        gone = self._chunks.pop(second)
        chunk = self._chunks[address]
        chunk.size, chunk.behind = chunk.size + gone.size, gone.behind
        if gone.behind is not None:
            self._chunks[gone.behind].before = address

    def _unlist(self, address: int) -> None:
        del self._free[bisect.bisect_left(self._free, (self._chunks[address].size, address))]


def rounded(size_bytes: int) -> int:
    """Round a requested size up to the allocator's alignment, bytes."""
    return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
