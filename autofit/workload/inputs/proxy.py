"""The dataset that `fit` receives in place of the user's PyDataset; loads Keras."""

from __future__ import annotations

from typing import Any

import keras

from autofit.workload.inputs.fit_input import BatchMaker, call_reported


class DatasetProxy(keras.utils.PyDataset):  # type: ignore[misc]  # Keras ships no types
    """A dataset of `length` batches: the full ones of the user's dataset of `count` (None:
    endless), repeated as needed.
    """

    # An epoch ends by the proxy's length and not by `stop_training`, which would leave Keras's
    # enqueuer running.

    def __init__(
        self,
        dataset: Any,
        count: int | None,
        length: int,
        maker: BatchMaker,
        **knobs: Any,
    ) -> None:
        super().__init__(**knobs)
        self._dataset = dataset
        self._length = length
        self._maker = maker
        # the last batch may be partial
        self._full = None if count is None else max(1, count - 1)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._maker.make(
            self._dataset.__getitem__,
            index if self._full is None else index % self._full,
        )

    def on_epoch_begin(self) -> None:
        call_reported(self._maker.report_error, self._dataset.on_epoch_begin)

    def on_epoch_end(self) -> None:
        call_reported(self._maker.report_error, self._dataset.on_epoch_end)
