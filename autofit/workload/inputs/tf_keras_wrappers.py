"""tf_keras Sequences that wrap the user's or repeat its batches, for a trial's process (this module loads tf_keras)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tf_keras

from autofit.workload.inputs.wrappers import DatasetProxy, RepeatedBatches


class SequenceProxy(DatasetProxy, tf_keras.utils.Sequence):  # type: ignore[misc]  # tf_keras ships no types
    """A Sequence with another length."""

    def __init__(self, dataset: Any, length: int, report_error: Callable[[BaseException], None]) -> None:
        self.wrap(dataset, len(dataset), length, report_error)


class RepeatedSequence(RepeatedBatches, tf_keras.utils.Sequence):  # type: ignore[misc]  # tf_keras ships no types
    """The same batches over and over; the arguments are those of `repeat`."""

    def __init__(self, *args: Any) -> None:
        self.repeat(*args)
