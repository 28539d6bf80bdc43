"""The tiny workload in the trials of `autofit doctor` and `autofit verify`: its rate, memory or end
is known.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from autofit.workload.workload import Workload

BATCH = 32
_WIDTH = 8
# of the further weights
_COLUMNS = 1024
# batches in an epoch
_LENGTH = 20_000
# the batch that waits for ever
_HANGING_CALL = 12
# of a leak, for each batch
_GROWTH_BYTES = 32 * 2**20
# slowly, so that the watcher sees it
_RISE_SECONDS = 0.02


def known(
    data: Mapping[str, Any] | None = None, model: Mapping[str, Any] | None = None
) -> Workload:
    """Return the workload with these arguments of `known_data` and `known_model`."""
    return Workload(
        known_model,
        known_data,
        data_kwargs=dict(data or {}),
        model_kwargs=dict(model or {}),
    )


def known_model(weight_bytes: int = 0, filters: int = 0) -> Any:
    """Return a model of one linear layer, with further weights, and a convolution with `filters`
    filters.
    """
    # slow to import, so imported only in a trial's process
    import keras
    from keras import layers

    inputs = keras.Input((_WIDTH,))
    hidden = inputs
    if filters:
        hidden = layers.Reshape((_WIDTH, 1))(hidden)
        hidden = layers.Conv1D(filters, 3)(hidden)
        hidden = layers.Flatten()(hidden)
    if weight_bytes:
        # JAX takes no more than 2**31 of them
        rows = max(1, weight_bytes // (4 * _COLUMNS))
        weights = layers.Embedding(
            rows, _COLUMNS, embeddings_initializer="zeros", trainable=False
        )
        hidden = layers.Flatten()(weights(inputs))
    output = layers.Dense(1, use_bias=False, kernel_initializer="zeros")(hidden)
    model = keras.Model(inputs, output)
    model.compile("sgd", "mse")
    return model


def known_data(
    batch_size: int,
    workers: int = 1,
    max_queue_size: int = 10,
    use_multiprocessing: bool = False,
    *,
    seconds: float = 0.0,
    held_bytes: int = 0,
    fault: str = "",
) -> Any:
    """Return a PyDataset that sleeps, holds an array, and has a `fault` (leak or hang), but not in
    batches of `BATCH`.
    """
    # slow to import, so imported only in a trial's process
    import keras

    held = np.ones(held_bytes, "uint8")
    kept = []
    calls = itertools.count(1)

    class Known(keras.utils.PyDataset):  # type: ignore[misc]  # Keras ships no types
        def __len__(self) -> int:
            return _LENGTH

        def __getitem__(self, index: int) -> Any:
            time.sleep(seconds)
            if fault == "leak" and batch_size != BATCH:
                time.sleep(_RISE_SECONDS)
                kept.append(np.ones(_GROWTH_BYTES, "uint8"))
            elif (
                fault == "hang" and batch_size != BATCH and next(calls) == _HANGING_CALL
            ):
                time.sleep(3600)
            x = np.full((batch_size, _WIDTH), held[:1].sum(), "float32")
            return x, np.ones((batch_size, 1), "float32")

    return Known(
        workers=workers,
        max_queue_size=max_queue_size,
        use_multiprocessing=use_multiprocessing,
    )
