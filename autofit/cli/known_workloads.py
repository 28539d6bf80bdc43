"""The tiny workload in the trials of `autofit doctor` and `autofit verify`: its rate, memory or end is known."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from autofit.workload.workload import Workload

BATCH, WIDTH = 32, 8
_LENGTH = 20_000  # batches in an epoch
_GROWTH_BYTES = 32 * 2**20  # that a leaking batch keeps
_RISE_SECONDS = 0.02  # between them, so that the watcher sees the memory rise
_HANGING_CALL = 12


def known(data: Mapping[str, Any] | None = None, model: Mapping[str, Any] | None = None) -> Workload:
    """Return the workload with these arguments of `known_data` and `known_model`."""
    return Workload(known_model, known_data, data_kwargs=dict(data or {}), model_kwargs=dict(model or {}))


def known_model(width: int = WIDTH, weight_bytes: int = 0, step_seconds: float | None = None, filters: int = 0) -> Any:
    """Return a model of one linear layer, with further weights of this size and a convolution with so many filters.

    Keras compiles its steps as it does by default, unless they sleep for `step_seconds`.
    """
    import keras  # slow to import, so imported only in a trial's process

    class Known(keras.Model):  # type: ignore[misc]  # Keras ships no types
        def train_step(self, *arguments: Any) -> Any:
            time.sleep(step_seconds or 0.0)
            return super().train_step(*arguments)

    hidden = inputs = keras.Input((width,))
    if filters:
        hidden = keras.layers.Flatten()(keras.layers.Conv1D(filters, 3)(keras.layers.Reshape((width, 1))(inputs)))
    if weight_bytes:
        weights = keras.layers.Embedding(weight_bytes // 4, 1, embeddings_initializer="zeros", trainable=False)
        hidden = keras.layers.Flatten()(weights(inputs))
    model = Known(inputs, keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")(hidden))
    model.compile("sgd", "mse", run_eagerly=step_seconds is not None)
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
    """Return a PyDataset that sleeps `seconds` for each batch, holds an array, and leaks or hangs if `fault` says so.

    Batches of `BATCH` samples have no fault.
    """
    import keras  # slow to import, so imported only in a trial's process

    held, kept, calls = np.ones(held_bytes, "uint8"), list[Any](), itertools.count(1)

    class Known(keras.utils.PyDataset):  # type: ignore[misc]  # Keras ships no types
        def __len__(self) -> int:
            return _LENGTH

        def __getitem__(self, index: int) -> Any:
            time.sleep(seconds)
            if fault == "leak" and batch_size != BATCH:
                time.sleep(_RISE_SECONDS)
                kept.append(np.ones(_GROWTH_BYTES, "uint8"))
            elif fault == "hang" and batch_size != BATCH and next(calls) == _HANGING_CALL:
                time.sleep(3600)
            return np.full((batch_size, width), held[:1].sum(), "float32"), np.ones((batch_size, 1), "float32")

    return Known(workers=workers, max_queue_size=max_queue_size, use_multiprocessing=use_multiprocessing)
