"""Estimate the memory of a train step on GPUs that need not be there, and the largest batch that fits each."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence

from autofit import backends
from autofit.backends.protocol import StepEstimator
from autofit.records.description import XLA, Footprint, GpuEstimate, line_of, recomputes_from
from autofit.records.gpu_models import GpuModel
from autofit.trial.worker.job import first_line

_FIRST_SIZES = (8, 32)  # two sizes define a line
_MOST_ROUNDS = 5  # of compilations near the largest batch
_CLOSE_SHARE = 0.03  # of the memory: a batch that leaves less is the largest
_LARGEST_BATCH = 2**20


def estimate(
    step: StepEstimator, gpus: Sequence[GpuModel], sizes: Sequence[int], multiple_of: int | None, most: int | None
) -> Iterator[GpuEstimate]:
    """Yield the estimate for each GPU: for the given batch sizes, and near the largest one that fits.

    Batch sizes are multiples of `multiple_of`; if that is None, `sizes` has the only size. No size above `most` is tried,
    unless it is given.
    """
    for gpu in gpus:
        began, usable = time.monotonic(), gpu.usable_bytes(backends.current().pool_bytes(gpu.device))
        multiple = None if multiple_of is None else math.lcm(multiple_of, gpu.count)  # several share a batch evenly
        search = _Search(step, gpu, usable, multiple, most or _LARGEST_BATCH)
        problem = ""
        try:
            search.run(sizes)
        except Exception as error:  # a limitation of the compiler for this GPU
            problem = first_line(error)
        yield GpuEstimate(
            gpu.label,
            gpu.total_bytes,
            usable,
            tuple(search.footprints[size] for size in sorted(search.footprints)),
            search.largest,
            time.monotonic() - began,
            problem,
        )


def size_at_limit(
    known: Sequence[Footprint], limit_bytes: int | None, multiple_of: int | None, most: int | None
) -> int | None:
    """Return the batch size that reaches the limit along the line through two compiled sizes, at most `most`.

    Near the end of a GPU's memory, XLA computes values again instead of keeping them: there, the memory is not on the line.
    Return None without a limit, without a line, or if that size is not above the known ones.
    """
    compiled = [footprint for footprint in known if footprint.method.startswith(XLA)]
    if limit_bytes is None or multiple_of is None or len(compiled) < len(_FIRST_SIZES):
        return None
    level, slope = line_of(compiled)
    size = min(int((limit_bytes - level) / slope), most or _LARGEST_BATCH) // multiple_of * multiple_of if slope > 0 else 0
    return size if size > compiled[-1].batch_size else None


class _Search:
    """Estimates sizes, and looks for the largest that fits: along the line through two sizes, then by the last two."""

    def __init__(self, step: StepEstimator, gpu: GpuModel, usable_bytes: int, multiple_of: int | None, most: int) -> None:
        self._step, self._gpu, self._usable, self._multiple = step, gpu, usable_bytes, multiple_of or 1
        self._most = most
        self._is_fixed = multiple_of is None
        self.footprints: dict[int, Footprint] = {}

    @property
    def largest(self) -> int | None:
        """The largest batch size so far whose memory, with the error of the estimate, fits."""
        return max((size for size in self.footprints if self._needed(size) <= self._usable), default=None)

    def run(self, sizes: Sequence[int]) -> None:
        first = sorted({self._allowed(size) for size in (*sizes, *(() if self._is_fixed else _FIRST_SIZES))})
        for given in first:
            self._estimate(given)
            if self._needed(given) > self._usable and given >= max(_FIRST_SIZES):
                break  # what is larger does not fit either
        if self._is_fixed:
            return
        if self.largest is None:
            self._estimate(self._multiple)
        if self.largest is None:
            return
        for _ in range(_MOST_ROUNDS):
            size = self._next()
            if size is None:
                return
            self._estimate(size)
            by_size = [self.footprints[each] for each in sorted(self.footprints)]
            if recomputes_from(by_size, self._gpu.total_bytes) is not None and self._needed(size) <= self._usable:
                return  # larger batches may also fit, but they are slower

    def _next(self) -> int | None:
        """Return the next size to estimate; None if the largest that fits is known well enough."""
        largest = self.largest or self._multiple
        too_large = [size for size in self.footprints if size > largest]
        if self._usable - self._needed(largest) < _CLOSE_SHARE * self._usable:
            return None
        below = [size for size in self.footprints if size < largest] or too_large
        other = min(too_large) if too_large else max(below, default=largest)
        slope = (self._needed(other) - self._needed(largest)) / (other - largest) if other != largest else 0.0
        wanted = largest + (self._usable - self._needed(largest)) / slope if slope > 0 else 2.0 * largest
        size = self._allowed(min(self._most, math.floor(wanted)), down=True)
        return size if largest < size < min(too_large, default=size + 1) else None

    def _allowed(self, size: int, *, down: bool = False) -> int:
        """Return a size that the step takes; rounded down, it is also a round number."""
        if self._is_fixed:
            return size
        step = self._multiple
        while down and step * 32 <= size:
            step *= 2
        return max(self._multiple, (size // step if down else math.ceil(size / step)) * step)

    def _estimate(self, size: int) -> None:
        if size not in self.footprints:
            self.footprints[size] = self._step.on_gpu(self._gpu, size)

    def _needed(self, size: int) -> float:
        footprint = self.footprints[size]
        return footprint.device_bytes + footprint.error_bytes(footprint.device_bytes)
