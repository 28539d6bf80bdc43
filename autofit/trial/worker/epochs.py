"""Time what each epoch costs: Keras starts workers, iterators and buffers anew in every epoch of one `fit`.

    an epoch of steady training    what is timed                                rate
    shorter than the run's timing  whole epochs                                 samples / seconds of an epoch
    longer                         gaps, between epochs of a few steps          samples / (samples / steady rate + gap)
    so long that no gap matters    nothing                                      steady rate

Epochs end as the user's do: with the data, or after `steps_per_epoch`, for which Keras keeps the iterator.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from autofit.records.trial import TrialSpec
from autofit.trial.worker.step_clock import SteadyRate, steady_rate
from autofit.workload.fit_options import STEPS_PER_EPOCH
from autofit.workload.inputs.fit_input import FitInput

_FEWEST_EPOCHS, _MOST_EPOCHS = 3, 10  # short ones; the first does not count, as it starts with the call of `fit`
_GAPS_SECONDS = 0.5  # of short epochs that are enough
_FEWEST_CALLS = 2  # of the train function in a short epoch
MOST_STEPS = 20_000  # of a run: more than it needs, but few enough for Keras to shuffle their indices quickly
UNKNOWN = "the number of samples in an epoch is unknown"
STREAM = "an epoch of an IterableDataset cannot be shortened"
ENDED = "a callback ended the training"


@dataclass(eq=False)
class Epochs:
    """Epochs of `steps` that `fit` trains for with `arguments`, and the clock that times them and cuts none short."""

    # A gap is the time from the end of an epoch's last call of the train function to the end of the next epoch's first,
    # less one steady call.

    arguments: Mapping[str, Any]
    steps: int
    samples: int  # of one of the user's epochs
    measure_seconds: float  # the epochs go on for this long
    are_whole: bool  # if they are, only their ends count, so that nothing waits for a step

    def __post_init__(self) -> None:
        self.steps_done, self.done = 0, False
        self._wait_for_end: Callable[[], None] | None = None
        self._ended_at, self._is_first = 0.0, True
        self._ends: list[tuple[float, float]] = []  # as in `steady_rate`, with epochs for steps
        self._gaps: list[float] = []  # in seconds, each with a call

    def step_ended(self, wait_for_end: Callable[[], None] | None = None, share: float = 1.0) -> None:
        self.steps_done, self._wait_for_end, self._ended_at = self.steps_done + 1, wait_for_end, time.perf_counter()
        if self._is_first and self._ends and not self.are_whole:
            self._gaps.append(self._end() - self._ends[-1][0])
        self._is_first = False

    def epoch_ended(self) -> None:
        self._ends.append((self._end(), len(self._ends)))
        self._is_first = True
        self.done = len(self._ends) >= _FEWEST_EPOCHS and self._ends[-1][0] - self._ends[0][0] >= self.measure_seconds

    def _end(self) -> float:  # of the last call
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
            rate = steady_rate(self._ends, self.samples)
            gap = max(0.0, rate.step_seconds - seconds)
        else:
            gap = max(0.0, statistics.median(self._gaps) - steady.step_seconds)
            share = seconds / (seconds + gap)
            rate = replace(steady, samples_per_second=share * steady.samples_per_second, spread=share * steady.spread)
        return {
            "samples_per_second": rate.samples_per_second,
            "spread": rate.finite_spread,
            "epoch_samples": self.samples,
            "epoch_gap_seconds": gap,
        }


def planned(data: FitInput, options: Mapping[str, Any], spec: TrialSpec, execution: int, rate: float) -> Epochs | str:
    """Plan which epochs to time; return why none is, or "" if the trial is not asked for it.

    `execution` is the number of steps in a call; `rate` is the expected steady rate in samples per second, 0 if unknown.
    """
    if not spec.longest_epoch_seconds:
        return ""
    given, counted, length = options.get(STEPS_PER_EPOCH), data.sample_count(), data.epoch_batches
    asked = spec.epoch_samples or (given and given * data.batch_samples)
    keeps_iterator = counted is None or length is None or (given is not None and (asked or 0) < counted)
    samples = asked if keeps_iterator else counted
    if samples is None:
        return UNKNOWN
    seconds = samples / rate if rate else spec.measure_seconds
    if seconds > spec.longest_epoch_seconds:
        return f"an epoch takes more than {spec.longest_epoch_seconds:,.0f} s"
    if length is not None and not keeps_iterator and seconds < spec.measure_seconds:
        arguments = data.epoch_arguments(length, math.ceil(MOST_STEPS / length))
        return Epochs(arguments, length, length * data.batch_samples, spec.measure_seconds, are_whole=True)
    # all workers make batches at the beginning of an epoch, as in the user's; if steps are slow, there are few
    most = math.floor(spec.measure_seconds * rate / (_FEWEST_EPOCHS * data.batch_samples * execution))
    calls = max(_FEWEST_CALLS, min(math.ceil(data.applied.worker_count(os.cpu_count() or 1) / execution), most))
    steps = calls * execution if keeps_iterator or length is None else min(calls * execution, length)
    arguments = data.epoch_arguments(steps * (_MOST_EPOCHS if keeps_iterator else 1), _MOST_EPOCHS)
    if STEPS_PER_EPOCH in arguments and not keeps_iterator:
        return STREAM
    if keeps_iterator:
        arguments[STEPS_PER_EPOCH] = steps
    return Epochs(arguments, steps, samples, _GAPS_SECONDS, are_whole=False)
