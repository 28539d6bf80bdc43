"""A model of TensorFlow's BFC allocator (best fit with coalescing), whose chunks are often larger than requested.

The rules and constants come from `tensorflow/core/common_runtime/bfc_allocator.cc` (TensorFlow 2.21): sizes are rounded
up to 256 B; an allocation takes the smallest free chunk that is large enough and splits it only if it is twice as large as
needed or 128 MiB larger; adjacent free chunks are merged; a new region is at least twice as large as the previous one.
"""

from __future__ import annotations

import bisect

_ALIGNMENT_BYTES = 256
FIRST_REGION_BYTES = 2 * 2**20
ONEDNN_LEAST_BYTES = 256 * 2**10
"""The smallest buffer that oneDNN's CPU allocator requests from BFC and counts (mkl_cpu_allocator.h)."""
_MOST_WASTE_BYTES = 128 * 2**20


class BestFitAllocator:
    """Assigns addresses, without allocating real memory.

    On a GPU, the first region is the whole limit, which the allocator reserves at once.
    """

    def __init__(self, region_bytes: int = FIRST_REGION_BYTES) -> None:
        self._used: dict[int, int] = {}  # sizes of the chunks in use, by address
        self._free: dict[int, int] = {}  # sizes of the free chunks, by address
        self._free_by_end: dict[int, int] = {}  # addresses of the free chunks, by the address of their end
        self._free_by_size: list[tuple[int, int]] = []  # sizes and addresses of the free chunks, sorted
        self._end = 0
        self._next_region = region_bytes

    def allocate(self, size_bytes: int) -> int:
        """Return the address of a new chunk of at least `size_bytes`."""
        needed = rounded(max(1, size_bytes))
        index = bisect.bisect_left(self._free_by_size, (needed, -1))
        if index == len(self._free_by_size):
            self._extend(needed)
        size, address = self._free_by_size[index]
        self._remove_free(address)
        if size >= 2 * needed or size - needed >= _MOST_WASTE_BYTES:
            self._add_free(address + needed, size - needed)
            size = needed
        self._used[address] = size
        return address

    def release(self, address: int) -> None:
        """Free a chunk and merge it with its free neighbours."""
        size = self._used.pop(address)
        if address + size in self._free:
            size += self._remove_free(address + size)
        if address in self._free_by_end:
            address = self._free_by_end[address]
            size += self._remove_free(address)
        self._add_free(address, size)

    def size_of(self, address: int) -> int:
        """Return the size of the chunk in use at an address, in bytes."""
        return self._used[address]

    def _extend(self, size: int) -> None:
        fits = size <= self._next_region
        while size > self._next_region:
            self._next_region *= 2
        region = self._next_region
        if fits:
            self._next_region *= 2
        self._add_free(self._end + _ALIGNMENT_BYTES, region)  # the gap between regions keeps their chunks from being merged
        self._end += _ALIGNMENT_BYTES + region

    def _add_free(self, address: int, size: int) -> None:
        self._free[address], self._free_by_end[address + size] = size, address
        bisect.insort(self._free_by_size, (size, address))

    def _remove_free(self, address: int) -> int:
        size = self._free.pop(address)
        del self._free_by_end[address + size]
        del self._free_by_size[bisect.bisect_left(self._free_by_size, (size, address))]
        return size


def rounded(size_bytes: int) -> int:
    """Round a requested size up to the allocator's alignment, in bytes."""
    return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
