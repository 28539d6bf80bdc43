"""`Watch`: a callback for the user's own `fit`, which compares the training with what the tune promised.

It loads no Keras: Keras takes any object with a callback's methods. It has no batch hooks, for which `fit` would wait after
each step; instead it counts the calls of the train function, and a thread reads the memory now and then.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psutil

from autofit import backends
from autofit.errors import UsageError
from autofit.machine import gpus, host
from autofit.records.result import TuneRecord
from autofit.records.trial import BUSY_SHARE
from autofit.records.units import format_bytes, format_rate, format_seconds
from autofit.storage import result_files, trainings
from autofit.storage.trainings import Training

_POLL_SECONDS = 10.0  # between readings of the memory, at least
_READING_SHARE = 0.001  # of the time that these readings may take
_LEAST_SECONDS = 20.0  # of an epoch, for a rate that may be called low
_USUAL_SPREAD = 0.05  # relative: rates of fresh processes differ by this on an idle machine
_LEAST_CALLS = 4  # of an epoch, after the first, whose rate counts
_GROWTH_SHARE, _GROWTH_BYTES = 0.2, 256 * 2**20  # of the promised peak: memory that grows by more is mentioned
_RISING = 3  # readings in a row that rise
_WAIT_SHARE = 0.3  # of the time of the steps: waiting for batches that is why a training is slow
_LEAST_WAIT_SECONDS = 2.0  # of steps whose waiting was timed


class Watch:
    """Compares a training with what a tune promised, and says in a line when it is slower or its memory grows.

    Give it to your own `fit`: `model.fit(..., callbacks=[autofit.Watch(result)])`. At the end it prints how fast the
    training was, and the next tune of the same model and data names that. If the training is killed, its last
    readings are kept, and the next tune does not choose a configuration that ran out of memory.

    Args:
        result: the result of the tune whose configuration is trained, or the path of a saved result.
        say: called with each line; by default it is printed to the standard error.

    Raises:
        UsageError: the result is one for predict or evaluate, or for tf_keras, or the file cannot be read.

    Example:
        >>> result = autofit.tune(build_model, arrays, space={"batch_size": [32, 256]}, max_seconds=60, progress=False)
        >>> watch = autofit.Watch(result, say=print)
        >>> history = build_model().fit(*arrays, **result.fit_kwargs, epochs=2, verbose=0, callbacks=[watch])
        autofit: the training ...
    """

    async_safe = True  # so Keras does not wait for the device after each step

    def __init__(self, result: TuneRecord | str | os.PathLike[str], say: Callable[[str], None] | None = None) -> None:
        if not isinstance(result, TuneRecord):
            result = result_files.answered(result_files.load(result), result)
        if result.call_source.call != "fit" or result.description.keras != "keras":
            raise UsageError("Watch watches a fit of Keras 3; this result is of another call", key="result")
        self._result, self._say = result, say or _to_stderr
        self._model: Any = None
        self._mentioned = set[str]()
        self._stopped = threading.Event()
        self._calls, self._first_end, self._last_end = 0, 0.0, 0.0
        self._asked_at, self._slow_rate = 0.0, 0.0
        # seconds since it was asked what the steps wait for: of waiting, and of the steps of epochs that have ended
        self._waited, self._timed_before = 0.0, 0.0
        self._rates = list[tuple[float, float]]()  # seconds and samples of epochs, without their first calls
        self._recent = list[tuple[float, float]]()  # the epochs since the last comparison
        self._memory = list[int]()
        self._children: list[psutil.Process] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("on_"):  # a hook that is not needed
            return _nothing
        raise AttributeError(name)

    def set_params(self, params: Any) -> None:
        """Take the parameters of `fit`."""
        self.params = params

    def set_model(self, model: Any) -> None:
        """Take the model."""
        self._model = model

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin to count the calls of the train function."""
        model, process = self._model, psutil.Process()
        self._execution = int(getattr(model, "steps_per_execution", 1) or 1)
        self._step = model.train_function
        before = getattr(self._step, "__self__", None)
        if isinstance(before, Watch):  # of a fit that raised
            before._stopped.set()
            self._step = before._step
        if self._step is not None:  # a fit of the user's own may have none
            model.train_function = self._counted
        machine = host.detect()
        self._training = Training(
            self._result.study,
            self._result.config,
            time.time(),
            os.getpid(),
            process.create_time(),
            host_limit_bytes=machine.memory_bytes,
        )
        self._began = time.monotonic()
        self._stopped.clear()
        self._thread = threading.Thread(target=self._read_memory, name="autofit-watch", daemon=True)
        self._thread.start()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin an epoch; its first call does not count."""
        self._calls = 0
        self._cores = host.CoreSeconds.read(self._children)

    def on_test_begin(self, logs: Any = None) -> None:
        """End the epoch's steps: validation begins."""
        self._end_steps()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """End the epoch's steps, if there was no validation."""
        self._end_steps()

    def on_train_end(self, logs: Any = None) -> None:
        """Say how the training compares with the promise, and keep it for the next tune."""
        if self._step is not None:
            self._model.train_function = self._step
        self._stopped.set()
        self._thread.join(timeout=1)
        self._look_at_memory()
        if self._slow_rate:
            self._say_slow("the step or the input is slower than in the trials")
        self._training = replace(self._noted(), ended=True)
        trainings.keep(self._training)
        self._say(f"autofit: {self._training.in_words(self._result.samples_per_second)}")

    def _counted(self, *arguments: Any) -> Any:
        if self._asked_at and self._calls:
            arguments = self._with_timed_batches(*arguments)
        made = self._step(*arguments)
        self._calls += 1
        self._last_end = time.perf_counter()
        if self._calls == 1:
            self._first_end = self._last_end
        return made

    def _with_timed_batches(self, *arguments: Any) -> tuple[Any, ...]:
        *others, batches = arguments
        if not hasattr(batches, "__next__"):  # torch passes the batches themselves, and waits before
            self._waited += time.perf_counter() - self._last_end
        elif not type(batches).__module__.startswith("tensorflow"):  # whose compiled step reads them
            return (*others, self._timed(batches))
        return arguments

    def _timed(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches, and time how long the step waits for each."""
        while True:
            began = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            finally:
                self._waited += time.perf_counter() - began
            yield batch

    def _end_steps(self) -> None:
        calls, seconds = self._calls - 1, time.perf_counter() - self._first_end
        self._calls = 0
        if self._asked_at and calls > 0:
            self._timed_before += time.perf_counter() - max(self._first_end, self._asked_at)
        if calls >= _LEAST_CALLS:
            samples = self._samples(calls)
            self._rates.append((seconds, samples))
            self._recent.append((seconds, samples))
            seconds, samples = (sum(each) for each in zip(*self._recent, strict=True))
            if seconds >= _LEAST_SECONDS:
                self._recent.clear()
                self._compare(samples / seconds)

    def _samples(self, calls: int) -> float:
        """Return the samples in an epoch's calls after the first; the last call of an epoch may be short."""
        a_call = self._execution * (self._result.config.batch_size or 1)
        count, steps = self._result.description.sample_count, (self.params or {}).get("steps")
        is_whole = count is not None and steps is not None and (calls + 1) * self._execution >= steps
        return float(min(calls * a_call, max(count - a_call, 0)) if is_whole and count is not None else calls * a_call)

    def _compare(self, rate: float) -> None:
        """Say once if a rate is below the promised interval, and why if that can be seen.

        If it is not other work or the clock, the next steps are timed to see whether they wait for their batches.
        """
        choice = self._result.choice
        low = choice.samples_per_second * (1 - max(choice.spread or 0.0, _USUAL_SPREAD))
        if "slow" in self._mentioned:
            return
        self._slow_rate = rate if rate < low else 0.0
        if not self._slow_rate:
            return
        other, idle = host.other_and_idle_cores(self._cores, host.CoreSeconds.read(self._children))
        cores, device = host.usable_cores(), self._result.placement.device
        with gpus.opened():
            throttles = gpus.throttles(device) if device else ()
        if other >= BUSY_SHARE * cores and idle < cores / 2:
            self._say_slow(f"other processes use {other:.1f} of {cores} cores")
        elif throttles:
            self._say_slow(f"the GPU lowers its clock ({', '.join(sorted(throttles))})")
        elif not self._asked_at:
            self._asked_at, self._waited = time.perf_counter(), 0.0
        elif self._waited and self._seconds_timed() >= _LEAST_WAIT_SECONDS:
            share = self._waited / self._seconds_timed()
            waits = f"the steps wait {share:.0%} of the time for their batches"
            self._say_slow(waits if share >= _WAIT_SHARE else "the step itself is slower than in the trials")
        elif not device and idle >= cores / 2:  # TensorFlow's steps take batches out of sight
            self._say_slow(f"{idle:.1f} of {cores} cores are idle, so the steps wait for their batches")

    def _seconds_timed(self) -> float:
        """Return the seconds of the steps whose waiting for batches was timed."""
        now = time.perf_counter()
        return self._timed_before + (now - max(self._first_end, self._asked_at) if self._calls else 0.0)

    def _say_slow(self, why: str) -> None:
        promised, rate = self._result.choice.samples_per_second, self._slow_rate
        self._mentioned.add("slow")
        self._slow_rate = self._asked_at = 0.0  # timing of the steps ends
        self._say(
            f"autofit: this training runs at {format_rate(rate)} samples/s, {rate / promised:.2f} of the promised "
            f"{format_rate(promised)}: {why}"
        )

    def _read_memory(self) -> None:
        pause = _POLL_SECONDS / 2
        while not self._stopped.wait(pause):
            began = time.perf_counter()
            with contextlib.suppress(Exception):  # a reading must not end the training
                self._look_at_memory()
                self._look_at_rate()
                trainings.keep(self._noted())
            pause = _POLL_SECONDS
            if not self._is_growing():
                pause = max(pause, (time.perf_counter() - began) / _READING_SHARE)

    def _is_growing(self) -> bool:
        """Return whether memory rose so much between two readings that the next should come soon."""
        if len(self._memory) < 2:
            return False
        promised = self._result.choice.host_peak_bytes or self._memory[0]
        return self._memory[-1] - self._memory[-2] > _GROWTH_SHARE / 4 * promised

    def _look_at_rate(self) -> None:
        """Compare the rate within a long epoch."""
        calls, seconds = self._calls - 1, time.perf_counter() - self._first_end
        if calls >= _LEAST_CALLS and seconds >= _LEAST_SECONDS:
            self._compare(self._samples(calls) / seconds)

    def _look_at_memory(self) -> None:
        total = 0
        self._children = psutil.Process().children(recursive=True)
        for process in (psutil.Process(), *self._children):
            with contextlib.suppress(psutil.Error, OSError):
                total += host.ProcessMemory.of(process).proportional
        self._memory.append(total)
        promised, latest = self._result.choice.host_peak_bytes or total, self._memory[-_RISING:]
        growth, seconds = total - self._memory[0], time.monotonic() - self._began
        rises = len(latest) == _RISING and latest == sorted(latest) and latest[0] < latest[-1]
        if rises and growth > max(_GROWTH_SHARE * promised, _GROWTH_BYTES) and "memory" not in self._mentioned:
            self._mentioned.add("memory")
            limit = self._training.host_limit_bytes
            left = format_seconds((limit - total) * seconds / growth)
            grown = f"{format_bytes(growth)} more than {format_seconds(seconds)} ago"
            self._say(
                f"autofit: memory grows: {format_bytes(total)} now, {grown} (promised peak {format_bytes(promised)}). At "
                f"this pace, the machine's {format_bytes(limit)} are full in {left}"
            )

    def _noted(self) -> Training:
        choice, placement = self._result.choice, self._result.placement
        seconds, samples = (sum(each) for each in zip(*self._rates, strict=True)) if self._rates else (0.0, 0.0)
        rate = samples / seconds if seconds else None
        device = backends.current().peak_bytes(placement) if placement.gpus else None
        highest = max(self._memory, default=0)
        return replace(
            self._training,
            seconds=time.monotonic() - self._began,
            rate_ratio=None if rate is None else rate / choice.samples_per_second,
            host_ratio=highest / choice.host_peak_bytes if highest and choice.host_peak_bytes else None,
            device_ratio=device / choice.device_peak_bytes if device and choice.device_peak_bytes else None,
            host_bytes=self._memory[-1] if self._memory else 0,
        )


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _to_stderr(text: str) -> None:
    print(f"\n{text}", file=sys.stderr)
