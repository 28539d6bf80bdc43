"""The clocks of a trial: of steady steps, and of epochs; this module loads no backend."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from autofit.backends.protocol import WaitForEnd
from autofit.records.intervals import pooled_half_width
from autofit.records.trial import TrialSpec
from autofit.workload.fit_options import STEPS_PER_EPOCH
from autofit.workload.inputs.fit_input import FitInput

# a queue that is not full after this time counts as full: the pipeline is too slow to fill it
STALL_SECONDS = 8.0
# much longer than a time slice of the scheduler, but short enough for five blocks in a second
_BLOCK_SECONDS = 0.15
_ENOUGH_BLOCKS = 5  # a small spread may end a run after this many blocks
_FEWEST_BLOCKS = 3  # a run with fewer blocks never ends early
_FEWEST_STEPS = 3  # steady steps that any rate needs
# largest drain, in queues: if both rates are alike, the queue never empties
_MOST_DRAINS = 3
# a queue is full when no batch is made for this long, or for the time of three batches
_QUIET_SECONDS = 0.3
_QUIET_BATCHES = 3
_POLL_SECONDS = 0.01
_WARM_UP_SECONDS = 1.0  # slow steps end the warm-up after this time
# after the queue is full: one ends with a batch from it, the next takes memory in addition to it
_CLOSING_STEPS = 2
_FEWEST_WARM_UP_STEPS = 2  # the step that is traced, and one more
# short ones; the first does not count, as it starts with the call of `fit`
_FEWEST_EPOCHS = 3
_MOST_EPOCHS = 10
# Fewest whole epochs whose median is a rate. On TensorFlow about one epoch in five begins late, by
# at most its own length: the end of a `tf.data` iterator may wait for the thread that tunes its
# pipeline (measured on TensorFlow 2.21; never with `tf.data.Options().autotune.enabled = False`).
_WHOLE_EPOCHS = 4
_LATE_RATIO = 1.5  # an epoch this many times the median is late; the scatter is that of the others
_GAPS_SECONDS = 0.5  # of short epochs that are enough
_FEWEST_CALLS = 2  # of the train function in a short epoch
# of a run: more than it needs, but few enough for Keras to shuffle their indices quickly
MOST_STEPS = 20_000
UNKNOWN = "the number of samples in an epoch is unknown"
ENDED = "a callback ended the training"
# its thread starts with the first step to wait for
_WAITING = ThreadPoolExecutor(1, "autofit-step-clock")

# a time in seconds, and the number of whole steps that had ended by then
End = tuple[float, float]


@dataclass(frozen=True)
class SteadyRate:
    """A rate over the steady part, and the relative half-width of its confidence interval."""

    samples_per_second: float
    spread: float = math.inf  # infinite if it was not read, which JSON turns into None
    step_seconds: float = 0.0
    steps: int = 0
    # ends of the blocks and of the part, in seconds and steps since its start
    blocks: tuple[End, ...] = ()


def ceiling(
    alone: SteadyRate | None, together: SteadyRate
) -> tuple[float | None, bool]:
    """Return the rate of step or pipeline alone, raised to that of both, and if it was read."""
    if alone is None:
        return None, False
    rate = alone.samples_per_second
    lowest = together.samples_per_second
    # a rate that an earlier trial read has no steps; of one that is raised, the reading of both
    # together would count twice
    return max(rate, lowest), alone.steps > 0 and rate > lowest


def steady_rate(ends: Sequence[End], batch_samples: int) -> SteadyRate:
    """Compute the rate of steps from the first time to the last."""
    # the first time starts the window; the spread is that of blocks of steps of at least 0.15 s,
    # not of single steps
    if len(ends) < 2:
        raise ValueError("a rate needs the ends of at least two steps")
    blocks = [ends[0]]
    rates = []
    for end, done in ends[1:]:
        block_start, block_done = blocks[-1]
        if end - block_start >= _BLOCK_SECONDS:
            rates.append((done - block_done) * batch_samples / (end - block_start))
            blocks.append((end, done))
    spread = pooled_half_width(rates) / statistics.fmean(rates) if rates else math.inf
    began, first = ends[0]
    # the last block may end with the part
    marks = dict.fromkeys((*blocks[1:], ends[-1]))
    read = tuple((end - began, done - first) for end, done in marks)
    seconds, steps = read[-1]
    return SteadyRate(
        samples_per_second=steps * batch_samples / seconds,
        spread=spread,
        step_seconds=seconds / steps,
        steps=round(steps),
        blocks=read,
    )


def steps_to_drain(
    queued: int, begun: int, input_rate: float, compute_rate: float
) -> int:
    """Return the steps in which a queue of `queued` steps is drained while it is filled."""
    # It is at least `queued` and at most three times `queued`: what remains drains slowly and
    # hardly affects the rate. If steps wait for the pipeline, those for which batches are `begun`
    # do not count either: such batches were made during the tracing of the step, which takes longer
    # (measured: on JAX, two of them lowered the rate of a sleeping pipeline by 2 %).
    added_a_step = input_rate / compute_rate
    if added_a_step >= 1:
        return queued
    drains = min(_MOST_DRAINS, 1 / (1 - added_a_step))
    return math.ceil(queued * drains) + begun


@dataclass(eq=False)
class StepClock:
    """Records the end of each step, and decides when the rate is precise enough."""

    # A run of `fit` as the clock sees it (x: not counted):
    #
    #     step 0   … warm-up …   [stall until the queue is full]   prefilled batches   steady … done
    #     x        x             x                                 x                   counted
    #
    # Where the pipeline may be slower than the steps, the queue fills after the steady part, if its
    # memory is to be read: only what was ready after the warm-up then has to be consumed first.
    #
    # The end of an epoch is not counted: the workers have no batches left to make, so the steps
    # have the whole machine. The end-to-end rate is therefore measured in a run that is
    # interrupted. Of arrays, which `fit` gets as a whole, several epochs may pass: if `fit` waits
    # for each step, the time to the end of an epoch's first step does not count.

    batch_samples: int  # in a step, which is one call of the train function
    # longest steady part; the run ends earlier once the spread is small enough
    measure_seconds: float
    # first steps that are not counted; fewer, but at least two, if they take more than a second
    warm_up: int = 2
    # shortest warm-up: an idle GPU takes time to raise its clock
    warm_up_seconds: float = 0.0
    # steps after the stall that consume the full queue and are not counted
    prefilled: int = 0
    # of a run whose rate is not read; None to count until the rate is precise
    steps: int | None = None
    # spread at which the run may end early; 0 to use all of `measure_seconds`
    enough_spread: float = 0.02
    # samples per second; the run ends early once its rate is lower by more than the spread
    to_beat: float | None = None
    # called once after the warm-up; may wait for a full queue, or set `prefilled`
    stall: Callable[[], None] | None = None
    # called once after the steady part, which two more steps follow
    closing: Callable[[], None] | None = None
    # largest number of steps in flight; None for no limit
    most_ahead: int | None = None
    # samples so far, a number that changes; None if each step takes `batch_samples`
    taken: Any = None
    # from one recorded end to the next; that many batches may arrive together
    round_steps: int = 1
    # seconds that this process has compiled so far, which grow
    compiled: Callable[[], float] = float

    def __post_init__(self) -> None:
        self._ahead = deque[tuple[float, Callable[[], None]]]()
        self.queued: int | None = None  # batches ready at the end of the stall
        self._ends: list[End] = []  # as in `steady_rate`; a thread may append to it
        self._compared_at = -math.inf
        # the distance between awaited steps grows over the first few
        self._awaited_at = -math.inf
        self._next_awaited = 0
        self.steps_done = 0
        self._done = 0.0  # the same, with short steps as shares
        self._ended: End = 0.0, 0.0  # the last step, if `fit` waited for it
        self._left_out: End = 0.0, 0.0  # first steps of epochs
        self._epoch_began = 0  # steps done before this epoch
        self._is_first_of_epoch = False
        self._warm_steps: int | None = None
        self._compiled_before = 0.0
        self._last_step = self.steps
        self.done = False
        self.compiling_seconds = 0.0  # of the steady part

    def step_ended(self, wait_for_end: WaitForEnd = None, share: float = 1.0) -> None:
        """Record the end of a step, stall once after the warm-up, and set `done`.

        `wait_for_end` is None if the step has already ended. `share` is the share of
        `batch_samples` in it.
        """
        self.steps_done += 1
        self._done += share
        if self.taken is not None:
            self._done = int(self.taken) / self.batch_samples
        if wait_for_end is None:
            self._leave_out_start_of_epoch()
        # what a run of few steps takes must not count for the next phase
        if self.steps_done in (1, self.steps):
            _wait(wait_for_end)
        if self.steps_done == 1:
            self._first_end = time.perf_counter()
        if self._last_step is not None:
            self.done = self.steps_done >= self._last_step
            return
        if self._warm_steps is None and self._is_warm():
            self._warm_steps = self.steps_done
            _wait(wait_for_end)
            if self.stall is not None:
                self.stall()
            self._compiled_before = self.compiled()
        if self._warm_steps is not None:
            counted = self.steps_done - self._warm_steps - self.prefilled
            if counted >= 0 and counted % self.round_steps == 0:
                self._note_end(wait_for_end)
        if self._is_precise():
            self.compiling_seconds = self.compiled() - self._compiled_before
            self._last_step = self.steps_done
            if self.closing is not None:
                _wait(wait_for_end)
                self.closing()
                self._last_step += _CLOSING_STEPS
            self.done = self.steps_done >= self._last_step

    def epoch_ended(self) -> None:
        """Leave out the first step of the next epoch, unless epochs have hardly more steps."""
        epoch_steps = self.steps_done - self._epoch_began
        self._is_first_of_epoch = epoch_steps > _FEWEST_STEPS
        self._epoch_began = self.steps_done

    def rate(self) -> SteadyRate:
        """Return the rate of the steady steps; raise `ValueError` if fewer than two have ended."""
        return steady_rate(self._ends[:], self.batch_samples)

    def _leave_out_start_of_epoch(self) -> None:
        now = time.perf_counter()
        if self._is_first_of_epoch:
            self._is_first_of_epoch = False
            ended, done = self._ended
            seconds, steps = self._left_out
            self._left_out = seconds + now - ended, steps + self._done - done
        self._ended = now, self._done

    def _note_end(self, wait_for_end: WaitForEnd) -> None:
        # If `fit` dispatches steps asynchronously, a thread waits for some of them, at least one in
        # each block, and records when they end. `fit` itself does not wait, as in the user's own
        # run: JAX has up to 32 steps in flight, each with its batch.
        if wait_for_end is None:
            self._add_end(self._done)
            return
        if self.most_ahead is not None:
            self._ahead.append((self._done, wait_for_end))
            if len(self._ahead) > self.most_ahead:
                self._add_end(*self._ahead.popleft())
            return
        now = time.perf_counter()
        if (
            self.steps_done >= self._next_awaited
            or now - self._awaited_at >= _BLOCK_SECONDS
        ):
            self._awaited_at = now
            # the first steps are recorded more often: many slow steps may be dispatched before the
            # first of them ends
            since_first = self.steps_done - (self._warm_steps or 0)
            self._next_awaited = self.steps_done + max(1, since_first)
            _WAITING.submit(self._add_end, self._done, wait_for_end)

    def _add_end(self, count: float, wait_for_end: WaitForEnd = None) -> None:
        _wait(wait_for_end)
        seconds, steps = self._left_out
        self._ends.append((time.perf_counter() - seconds, count - steps))

    def _is_warm(self) -> bool:
        seconds = time.perf_counter() - self._first_end
        if self.steps_done >= self.warm_up and seconds >= self.warm_up_seconds:
            return True
        return seconds >= _WARM_UP_SECONDS and self.steps_done >= _FEWEST_WARM_UP_STEPS

    def _is_precise(self) -> bool:
        if not self._ends:
            return False
        began, first = self._ends[0]
        end, done = self._ends[-1]
        if done - first < _FEWEST_STEPS:
            return False
        seconds = end - began
        if seconds >= self.measure_seconds:
            return True
        if (
            seconds < _FEWEST_BLOCKS * _BLOCK_SECONDS
            or end < self._compared_at + _BLOCK_SECONDS
        ):
            return False
        self._compared_at = end  # once a block: more often would slow down quick steps
        rate = self.rate()
        if rate.samples_per_second * (1 + rate.spread) < (self.to_beat or 0.0):
            return True
        return (
            seconds >= _ENOUGH_BLOCKS * _BLOCK_SECONDS
            and rate.spread <= self.enough_spread
        )


@dataclass(eq=False)
class Epochs:
    """The clock of epochs of `steps`, for which `fit` trains with `arguments`."""

    # Keras starts workers, iterators and buffers anew in every epoch of one `fit`; epochs end as
    # the user's do: with the data, or after `steps_per_epoch`, for which Keras keeps the iterator.
    #
    #     an epoch of steady training   what is timed               rate
    #     short: four fit into the run  whole epochs                samples / median of the seconds
    #     longer                        gaps, between short epochs  samples / (seconds + gap)
    #     so long that no gap matters   nothing                     steady rate
    #
    # A gap is the time from the end of an epoch's last call of the train function to the end of the
    # next epoch's first, less one steady call.

    arguments: Mapping[str, Any]
    steps: int
    samples: int  # of one of the user's epochs
    measure_seconds: float  # the epochs go on for this long
    # if they are, only their ends count, so that nothing waits for a step
    are_whole: bool

    def __post_init__(self) -> None:
        self.steps_done = 0
        self.done = False
        self._wait_for_end: WaitForEnd = None
        self._ended_at = 0.0
        self._is_first = True
        self._ends: list[End] = []  # as in `steady_rate`, with epochs for steps
        self._gaps: list[float] = []  # in seconds, each with a call

    def step_ended(self, wait_for_end: WaitForEnd = None, share: float = 1.0) -> None:
        self.steps_done += 1
        self._wait_for_end = wait_for_end
        self._ended_at = time.perf_counter()
        if self._is_first and self._ends and not self.are_whole:
            self._gaps.append(self._end() - self._ends[-1][0])
        self._is_first = False

    def epoch_ended(self) -> None:
        self._ends.append((self._end(), len(self._ends)))
        self._is_first = True
        seconds = self._ends[-1][0] - self._ends[0][0]
        # the first one begins with the call of `fit`
        fewest = 1 + _WHOLE_EPOCHS if self.are_whole else _FEWEST_EPOCHS
        self.done = len(self._ends) >= fewest and seconds >= self.measure_seconds

    # of the last call
    def _end(self) -> float:
        if self._wait_for_end is None:
            return self._ended_at
        self._wait_for_end()
        return time.perf_counter()

    def readings(self, steady: SteadyRate) -> dict[str, Any]:
        """Return the rate of epochs, its spread and the gap, as fields of a measurement."""
        if len(self._ends) < _FEWEST_EPOCHS:
            return {"epoch_gap_unread": ENDED}
        seconds = self.samples / steady.samples_per_second
        if self.are_whole:
            epochs = [later - end for (end, _), (later, _) in pairwise(self._ends)]
            median = statistics.median_low(epochs)
            on_time = [each for each in epochs if each <= _LATE_RATIO * median]
            ends = enumerate(accumulate(on_time, initial=0.0))
            whole = steady_rate([(end, done) for done, end in ends], self.samples)
            spread = whole.spread
            gap = median - seconds
        else:
            # of two, one of which may be late, the shorter
            median = statistics.median_low(self._gaps)
            gap = max(0.0, median - steady.step_seconds)
            spread = steady.spread * seconds / (seconds + gap)
        return {
            "samples_per_second": self.samples / (seconds + gap),
            "spread": spread,
            "epoch_samples": self.samples,
            "epoch_gap_seconds": max(0.0, gap),
        }


def planned_epochs(
    data: FitInput,
    options: Mapping[str, Any],
    spec: TrialSpec,
    execution: int,
    rate: float,
) -> Epochs | str:
    """Plan which epochs to time; return why none is, or "" if the trial is not asked for it.

    `execution` is the number of steps in a call; `rate` is the expected steady rate in samples per
    second, or 0.
    """
    if not spec.longest_epoch_seconds:
        return ""
    given = options.get(STEPS_PER_EPOCH)
    counted = data.sample_count()
    length = data.epoch_batches
    asked = spec.epoch_samples or (given and given * data.batch_samples)
    keeps_iterator = counted is None or length is None
    if counted is not None and given is not None:
        keeps_iterator = keeps_iterator or (asked or 0) < counted
    samples = asked if keeps_iterator else counted
    if samples is None:
        return UNKNOWN
    seconds = samples / rate if rate else spec.measure_seconds
    if seconds > spec.longest_epoch_seconds:
        return f"an epoch takes more than {spec.longest_epoch_seconds:,.0f} s"
    is_whole = _WHOLE_EPOCHS * seconds < spec.measure_seconds
    if length is not None and not keeps_iterator and is_whole:
        arguments = data.epoch_arguments(length, math.ceil(MOST_STEPS / length))
        full_samples = length * data.batch_samples
        return Epochs(
            arguments, length, full_samples, spec.measure_seconds, are_whole=True
        )
    # all workers make batches at the beginning of an epoch, as in the user's; if steps are slow,
    # there are few
    call_samples = data.batch_samples * execution
    most_calls = math.floor(
        spec.measure_seconds * rate / (_FEWEST_EPOCHS * call_samples)
    )
    busy_calls = math.ceil(worker_count(data) / execution)
    steps = max(_FEWEST_CALLS, min(busy_calls, most_calls)) * execution
    if keeps_iterator:
        arguments = data.epoch_arguments(steps * _MOST_EPOCHS, _MOST_EPOCHS)
        arguments[STEPS_PER_EPOCH] = steps
    else:
        steps = min(steps, length or steps)
        arguments = data.epoch_arguments(steps, _MOST_EPOCHS)
        if STEPS_PER_EPOCH in arguments:
            return "an epoch of an IterableDataset cannot be shortened"
    return Epochs(arguments, steps, samples, _GAPS_SECONDS, are_whole=False)


def worker_count(data: FitInput) -> int:
    """Return the number of threads or processes that make batches on this machine."""
    return data.applied.worker_count(os.cpu_count() or 1)


def _wait(wait_for_end: WaitForEnd) -> None:
    if wait_for_end is not None:
        wait_for_end()


def wait_until_full(
    batches_made: Callable[[], int | None], batch_seconds: float
) -> None:
    """Wait until a pipeline stops because its consumer waits.

    `batch_seconds` is one producer's time for a batch.
    """
    quiet_seconds = max(_QUIET_SECONDS, _QUIET_BATCHES * batch_seconds)
    changed = time.perf_counter()
    deadline = changed + STALL_SECONDS + quiet_seconds
    made = batches_made()
    while time.perf_counter() < min(changed + quiet_seconds, deadline):
        time.sleep(_POLL_SECONDS)
        if batches_made() != made:
            made = batches_made()
            changed = time.perf_counter()
