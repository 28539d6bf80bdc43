"""Estimate the memory of a train step on GPUs that need not be there, and the largest batch that fits each."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence

from autofit import backends
from autofit.backends.protocol import StepEstimator
from autofit.records.description import Footprint, GpuEstimate, recomputes_from
from autofit.records.machine import Device
from autofit.trial.worker.job import first_line

_CONTEXT_BYTES = 500 * 2**20  # of CUDA's context, which a program cannot use (assumed)
_FIRST_SIZES = (8, 32)  # two sizes define a line
_MOST_ROUNDS = 5  # of compilations near the largest batch
_CLOSE_SHARE = 0.03  # of the memory: a batch that leaves less is the largest
_LARGEST_BATCH = 2**20
_DIGITS = 5  # binary digits of a size in the search, as a multiple of what the step takes


def estimate(
    step: StepEstimator, gpus: Sequence[Device], sizes: Sequence[int], multiple_of: int | None, most: int | None
) -> Iterator[GpuEstimate]:
    """Yield the estimate for each GPU: for the given batch sizes, and near the largest one that fits, up to `most`."""
    for gpu in gpus:
        began, total = time.monotonic(), gpu.total_bytes
        # a backend that takes what it needs gets all but a context
        usable = min(total - _CONTEXT_BYTES, backends.current().pool_bytes(gpu) or total)
        footprints: dict[int, Footprint] = {}
        problem = ""
        try:
            for size in _sizes(footprints, usable, total, sizes, multiple_of, most or _LARGEST_BATCH):
                footprints[size] = step.on_gpu(gpu, size)
        except Exception as error:  # a limitation of the compiler for this GPU
            problem = first_line(error)
        largest = max((size for size in footprints if footprints[size].upper_bytes <= usable), default=None)
        by_size, seconds = tuple(footprints[size] for size in sorted(footprints)), time.monotonic() - began
        slower_from = recomputes_from(by_size, total)
        yield GpuEstimate(gpu.name, total, usable, by_size, largest, seconds, problem, slower_from)


def _sizes(
    footprints: Mapping[int, Footprint], usable: int, total: int, given: Sequence[int], multiple_of: int | None, most: int
) -> Iterator[int]:
    # those given, then nearer to `usable` bytes; each is in `footprints` before the next is drawn
    if multiple_of is None:
        yield from given
        return
    for size in sorted({math.ceil(size / multiple_of) * multiple_of for size in (*given, *_FIRST_SIZES)}):
        yield size
        if footprints[size].upper_bytes > usable:
            break  # what is larger does not fit either
    for _ in range(_MOST_ROUNDS):
        size = _nearer(footprints, usable, multiple_of, most)
        if size in footprints:
            return
        yield size
        is_slower = recomputes_from([footprints[each] for each in sorted(footprints)], total) is not None
        if is_slower and footprints[size].upper_bytes <= usable:
            return  # larger batches may also fit


def _nearer(footprints: Mapping[int, Footprint], usable: int, multiple: int, most: int) -> int:
    """Return the size that takes `usable` bytes on the line through two in `footprints`; one of these if none is better."""
    fitting = sorted(size for size in footprints if footprints[size].upper_bytes <= usable)
    if not fitting:
        return multiple
    largest = fitting[-1]
    room = usable - footprints[largest].upper_bytes
    if room < _CLOSE_SHARE * usable:
        return largest
    others = sorted(size for size in footprints if size > largest)[:1] or fitting[-2:-1]
    slope = sum((footprints[other].upper_bytes - footprints[largest].upper_bytes) / (other - largest) for other in others)
    size = min(math.floor(largest + room / slope if slope > 0 else 2 * largest), most)
    unit = multiple << max(0, (size // multiple).bit_length() - _DIGITS)
    return max(largest, size // unit * unit)
