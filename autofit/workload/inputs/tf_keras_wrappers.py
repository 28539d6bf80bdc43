"""A tf_keras Sequence that wraps the user's, for a trial's process (this module loads tf_keras)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tf_keras

from autofit.workload.inputs.wrappers import DatasetProxy


class SequenceProxy(DatasetProxy, tf_keras.utils.Sequence):  # type: ignore[misc]  # tf_keras ships no types
    """A Sequence with another length."""

    def __init__(self, dataset: Any, length: int, report_error: Callable[[BaseException], None]) -> None:
        self.wrap(dataset, len(dataset), length, report_error)
