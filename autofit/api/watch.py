"""`Watch`: a callback for the user's own `fit`, which compares each epoch with what the tune
promised.
"""

from __future__ import annotations

import time
from typing import Any

import psutil

from autofit.api.session import without_frames
from autofit.errors import UsageError
from autofit.machine import host
from autofit.records.result import Answer, TuneRecord
from autofit.records.trial import BUSY_SHARE
from autofit.records.units import format_bytes, format_rate
from autofit.storage import result_files

# of the promised rate: rates of fresh processes differ by a few percent on an idle machine
_SLOW_RATIO = 0.9


@without_frames
def Watch(  # noqa: N802  # used like Keras's callbacks, which are classes
    result: TuneRecord | result_files.StrPath, *, same_batch: bool = False
) -> Any:
    """Return a Keras callback that prints a line after each epoch: its rate and host memory against
    the promised ones.

    Give it to your own `fit`: `model.fit(..., callbacks=[autofit.Watch(result)])`. The line says
    when the epoch was slower than promised, and whether other processes used the cores. Rates leave
    out the validation, and the first call of the first epoch, which compiles the step.

    Args:
        result: the result of the tune whose configuration is trained, or the path of a saved
            result.
        same_batch: whether its answer at your own batch size is trained, and not the fastest.

    Raises:
        UsageError: the result is one for predict or evaluate, has no such answer, or the file
            cannot be read.

    Example:
        >>> space = {"batch_size": [32, 256]}
        >>> result = autofit.tune(build_model, arrays, space=space, max_seconds=60, progress=False)
        >>> watch = autofit.Watch(result)
        >>> model = build_model()
        >>> options = {**result.fit_kwargs, "epochs": 2, "verbose": 0, "callbacks": [watch]}
        >>> history = model.fit(*arrays, **options)
        autofit: epoch 1: ... samples/s, ... of the tune's ...; host memory ...
        autofit: epoch 2: ...
    """
    if not isinstance(result, TuneRecord):
        result = result_files.load_tune(result)
    if result.call_source.call != "fit":
        raise UsageError(
            f"Watch needs the result of fit; this one is for {result.call_source.call}",
            key="result",
        )
    answer = result_files.answer_of(result, same_batch=same_batch)
    import keras  # not before: whoever trains has loaded it, and importing autofit must not

    return type("Watch", (EpochWatch, keras.callbacks.Callback), {})(result, answer)


class EpochWatch:
    """The hooks of the callback.

    The class that `Watch` makes also derives from Keras's `Callback`.
    """

    params: dict[str, Any]
    model: Any

    def __init__(self, record: TuneRecord, answer: Answer) -> None:
        super().__init__()
        self._record = record
        self._answer = answer
        self._is_first = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._calls = self._first_batch = self._last_batch = 0
        self._began_at = time.perf_counter()
        self._ended_at = 0.0
        self._cores = host.CoreSeconds.read(psutil.Process().children(recursive=True))

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        # unlike a hook at the end of a batch, this one does not make fit wait for the step
        self._calls += 1
        self._last_batch = batch
        if self._calls == 2 and self._is_first:
            self._began_at = time.perf_counter()
            self._first_batch = batch
            self._is_first = False

    def on_test_begin(self, logs: Any = None) -> None:
        self._ended_at = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        ended_at = self._ended_at or time.perf_counter()
        rate = self._samples() / (ended_at - self._began_at)
        promised = self._answer.samples_per_second
        share = f"{rate / promised:.2f} of the tune's {format_rate(promised)}"
        line = f"autofit: epoch {epoch + 1}: {format_rate(rate)} samples/s, {share}"
        children = psutil.Process().children(recursive=True)
        if rate < _SLOW_RATIO * promised:
            line += ": slower"
            after = host.CoreSeconds.read(children)
            other, _ = host.other_and_idle_cores(self._cores, after) or (0.0, 0.0)
            cores = host.visible_cores()
            if other >= BUSY_SHARE * cores:
                line += f", other processes used {other:.1f} of {cores} cores"
        tree = (psutil.Process(), *children)
        held = sum(
            memory.held for memory in host.of_living(tree, host.ProcessMemory.of)
        )
        line += f"; host memory {format_bytes(held)}"
        peak = self._answer.host_peak_bytes
        if peak:
            line += f", {held / peak:.2f} of the tune's {format_bytes(peak)}"
        # Keras's progress bar ends its own line only after this callback
        start = "\n" if self.params.get("verbose") == 1 else ""
        print(f"{start}{line}", flush=True)

    def _samples(self) -> int:
        """Return the samples of the epoch from when it is timed; the last batch may be short."""
        size = self._answer.config.batch_size or 1
        count = self._record.description.sample_count or 0
        steps: int = (
            self.params.get("steps")
            or self._last_batch + self.model.steps_per_execution
        )
        samples = size * steps
        if samples - size < count <= samples:
            samples = count
        return samples - size * self._first_batch
