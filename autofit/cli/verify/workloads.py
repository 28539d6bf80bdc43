"""Workloads whose rate, memory or end is known, for the processes of trials."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from autofit.workload.workload import Workload

BATCH, WIDTH = 32, 8
_LENGTH = 20_000  # batches in an epoch
_GROWTH_BYTES = 32 * 2**20  # that a leaking batch keeps
_RISE_SECONDS = 0.02  # between them, so that the watcher sees the memory rise
_FAULT_AT = 12  # the number of the call that hangs or is killed


def workload(data: Mapping[str, Any] | None = None, model: Mapping[str, Any] | None = None) -> Workload:
    """Return a workload with these arguments of its factories."""
    return Workload(known_model, known_data, data_kwargs=dict(data or {}), model_kwargs=dict(model or {}))


def known_model(width: int = WIDTH, weight_bytes: int = 0, step_seconds: float = 0.0) -> Any:
    """Return a linear model with further weights of this size, whose steps take so long."""
    import keras  # slow to import, so imported only in a trial's process

    class Held(keras.layers.Layer):  # type: ignore[misc]  # Keras ships no types
        def build(self, shape: Any) -> None:
            self.held = self.add_weight(shape=(weight_bytes // 4,), trainable=False, initializer="zeros", name="held")

        def call(self, inputs: Any) -> Any:
            return inputs + self.held[0]

    class Known(keras.Model):  # type: ignore[misc]  # Keras ships no types
        def make_train_function(self, force: bool = False) -> Any:
            super().make_train_function(force)
            step: Any = self.train_function  # type: ignore[has-type]  # as above
            if not step_seconds or getattr(step, "is_slowed", False):
                return step

            def slowed(*arguments: Any) -> Any:
                made = step(*arguments)
                time.sleep(step_seconds)
                return made

            slowed.is_slowed = True  # type: ignore[attr-defined]  # Keras makes the function again for each fit
            self.train_function = slowed
            return slowed

    inputs = keras.Input((width,))
    hidden = Held()(inputs) if weight_bytes else inputs
    model = Known(inputs, keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")(hidden))
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    return model


def known_data(
    batch_size: int,
    workers: int = 1,
    max_queue_size: int = 10,
    use_multiprocessing: bool = False,
    *,
    seconds: float = 0.0,
    held_bytes: int = 0,
    width: int = WIDTH,
    fault: str = "",
) -> Any:
    """Return a PyDataset that sleeps `seconds` for each batch, holds an array, and ends in a fault if one is named.

    Batches of `BATCH` samples have no fault.
    """
    import keras  # as above

    held, kept, calls = np.ones(held_bytes, "uint8"), list[Any](), itertools.count(1)

    class Known(keras.utils.PyDataset):  # type: ignore[misc]  # Keras ships no types
        def __len__(self) -> int:
            return _LENGTH

        def __getitem__(self, index: int) -> Any:
            if seconds:
                time.sleep(seconds)
            if fault == "leak" and batch_size != BATCH:
                time.sleep(_RISE_SECONDS)
                kept.append(np.ones(_GROWTH_BYTES, "uint8"))
            elif fault and batch_size != BATCH and next(calls) == _FAULT_AT:
                time.sleep(3600) if fault == "hang" else os.kill(os.getpid(), signal.SIGKILL)
            return np.full((batch_size, width), held[:1].sum(), "float32"), np.ones((batch_size, 1), "float32")

    return Known(workers=workers, max_queue_size=max_queue_size, use_multiprocessing=use_multiprocessing)
