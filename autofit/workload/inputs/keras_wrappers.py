"""A PyDataset that wraps the user's, for a trial's process (this module loads Keras)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from autofit.workload.inputs.wrappers import DatasetProxy


class KerasProxy(DatasetProxy, keras.utils.PyDataset):  # type: ignore[misc]  # Keras ships no types
    """A PyDataset with another length, with the workers and the queue of the one that it wraps."""

    def __init__(self, dataset: Any, length: int, report_error: Callable[[BaseException], None]) -> None:
        super().__init__(
            workers=dataset.workers,
            use_multiprocessing=dataset.use_multiprocessing,
            max_queue_size=dataset.max_queue_size,
        )
        self.wrap(dataset, dataset.num_batches, length, report_error)
