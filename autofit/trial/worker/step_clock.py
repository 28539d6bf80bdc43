"""Step clock and rates: when steps ended, what of that is steady, and how sure the rate is.

A run of `fit` as the clock sees it (x: not counted):

    step 0   … warm-up …   [stall until the queue is full]   prefilled batches   steady ……… done
    x        x             x                                 x                   counted

Nor is the end of an epoch counted: the workers have nothing left to make by then, and the steps have the machine for
themselves. So the real rate is taken in a run that is broken off, not in one that ends.

Pure but for `time.perf_counter` and the stall; loads no backend.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autofit.records.intervals import mean_interval

_BLOCK_SECONDS = 0.15  # long against the clock and the scheduler's slice, short enough for five in a second
_ENOUGH_BLOCKS = 5
_FEWEST_BLOCKS = 3  # that give a spread
_FEWEST_STEPS = 3
STALL_SECONDS = 8.0
"""A queue that is not full by then is counted as full: the pipeline is that slow."""
_QUIET_SECONDS = 0.3  # a queue is full when nothing new came for this long, or for three batches' time
_POLL_SECONDS = 0.01
_WARM_UP_SECONDS = 1.0
_FEWEST_WARM_UP_STEPS = 2


@dataclass(frozen=True)
class Rate:
    """Samples per second over the steady part, with the relative half-width of its 95 % confidence interval."""

    samples_per_second: float
    spread: float
    step_seconds: float
    steps: int


def steady_rate(step_ends: Sequence[float], batch_samples: int) -> Rate:
    """The rate from the times (s) at which consecutive steps ended; the first opens the window.

    Steps are gathered into blocks of at least 0.15 s, so that the spread is that of blocks, not of single steps.

    Raises:
        ValueError: there are fewer than two times.
    """
    if len(step_ends) < 2:
        raise ValueError("a rate needs the ends of at least two steps")
    steps, seconds = len(step_ends) - 1, step_ends[-1] - step_ends[0]
    rates, opened, count = [], step_ends[0], 0
    for end in step_ends[1:]:
        count += 1
        if end - opened >= _BLOCK_SECONDS:
            rates.append(count * batch_samples / (end - opened))
            opened, count = end, 0
    mean, half_width = mean_interval(rates) if rates else (1.0, math.inf)
    return Rate(steps * batch_samples / seconds, half_width / mean, seconds / steps, steps)


class StepClock:
    """Told of the end of each step, it says when enough is known.

    Args:
        batch_samples: samples a step.
        max_seconds: longest steady part; it ends earlier when the spread is small enough.
        warm_up: steps at the beginning that are not counted; fewer, but two at the least, when they take over a second.
        prefilled: steps after the stall that still eat from the full queue, and are not counted.
        steps: count so many steps, whatever the spread, of a run that then ends by itself.
        enough_spread: a spread at which the run may end before its time; 0 to use all of it.
        to_beat: samples per second; a rate that is below it for all its spread ends the run, too.
        stall: called once after the warm-up; returns when the queue is full.
    """

    def __init__(
        self,
        batch_samples: int,
        max_seconds: float,
        *,
        warm_up: int = 2,
        prefilled: int = 0,
        steps: int | None = None,
        enough_spread: float = 0.02,
        to_beat: float | None = None,
        stall: Callable[[], None] | None = None,
    ) -> None:
        self._batch_samples, self._max_seconds = batch_samples, max_seconds
        self._warm_up, self._prefilled, self._stall = warm_up, prefilled, stall
        self.steps, self._enough_spread, self._to_beat = steps, enough_spread, to_beat or 0.0
        self.queued: int | None = None  # batches that stood ready when the stall was over
        self._ends: list[float] = []
        self._first_end = 0.0
        self.steps_done = 0
        self._warm_steps: int | None = None
        self.done = False

    def step_ended(self) -> None:
        """Note the end of a step; may stall, and sets `done`."""
        self.steps_done += 1
        if self.steps_done == 1:
            self._first_end = time.perf_counter()
        if self._warm_steps is None and self._is_warm():
            self._warm_steps = self.steps_done
            if self._stall is not None:
                self._stall()
        if self._warm_steps is not None and self.steps_done >= self._warm_steps + self._prefilled:
            self._ends.append(time.perf_counter())
        self.done = self._knows_enough() if self.steps is None else self.steps_done >= self._warm_up + self.steps

    def rate(self) -> Rate | None:
        """The rate of the steady part; None when the run was over before it began."""
        return steady_rate(self._ends, self._batch_samples) if len(self._ends) >= 2 else None

    def _is_warm(self) -> bool:
        slow = time.perf_counter() - self._first_end >= _WARM_UP_SECONDS
        return self.steps_done >= self._warm_up or (slow and self.steps_done >= _FEWEST_WARM_UP_STEPS)

    def _knows_enough(self) -> bool:
        steps = len(self._ends) - 1
        if steps < _FEWEST_STEPS:
            return False
        seconds = self._ends[-1] - self._ends[0]
        if seconds >= self._max_seconds:
            return True
        if seconds < _FEWEST_BLOCKS * _BLOCK_SECONDS:
            return False
        rate = steady_rate(self._ends, self._batch_samples)
        if rate.samples_per_second * (1 + rate.spread) < self._to_beat:
            return True
        return seconds >= _ENOUGH_BLOCKS * _BLOCK_SECONDS and rate.spread <= self._enough_spread


def wait_until_full(batches_made: Callable[[], int], batch_seconds: float) -> None:
    """Return when a pipeline whose consumer stands still makes no more batches.

    Args:
        batches_made: how many it has made so far.
        batch_seconds: how long one producer takes for a batch.
    """
    quiet = max(_QUIET_SECONDS, 3 * batch_seconds)
    started = changed = time.perf_counter()
    made = batches_made()
    while time.perf_counter() - changed < quiet and time.perf_counter() - started < STALL_SECONDS + quiet:
        time.sleep(_POLL_SECONDS)
        if batches_made() != made:
            made, changed = batches_made(), time.perf_counter()
