"""One file per Keras backend: set the device limit, read the peak, recognise an OOM.

A backend is chosen by `KERAS_BACKEND` as Keras itself does; so far TensorFlow is the one that is known.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, Protocol

from autofit.backends.tensorflow import TensorFlow
from autofit.errors import UsageError
from autofit.records import Device, Footprint

__all__ = ["Backend", "current"]


class Backend(Protocol):
    """What a trial's process needs of a Keras backend; nothing here may load the backend on import."""

    name: str
    oom_lines: re.Pattern[str]
    """Matches a log line that the backend's allocator writes when device memory has run out for good."""
    fallback_lines: re.Pattern[str]
    """Matches a log line that says that an algorithm was given up for want of memory: the slow zone below the limit."""

    def environment(self, device: Device | None) -> dict[str, str]:
        """Variables to be set before the backend is imported, so that it uses this device (None: the CPU)."""

    def preload(self) -> None:
        """Import the backend, running no operation."""

    def set_limit(self, device: Device | None, limit_bytes: int | None) -> None:
        """Make the limit real; called in a trial's process before its first operation."""

    def peak_bytes(self, device: Device | None) -> int | None:
        """The most device memory in use since the start or `reset_peak`; None where the allocator does not count."""

    def reset_peak(self, device: Device | None) -> None:
        """Let the peak begin anew from what is in use now; only where the allocator counts."""

    def estimator(
        self, model: Any, batch: Any, device: Device | None, limit_bytes: int | None
    ) -> Callable[[int], Footprint]:
        """What estimates the device memory of a train step, for any number of samples, training nothing.

        Args:
            model: built and compiled, its optimizer built.
            batch: arrays, (x, y) or (x, y, sample_weight).
            device: the accelerator, None for the CPU.
            limit_bytes: what the allocator may use.

        Raises:
            Exception: what the model's code raises when it is traced for another number of samples.
        """

    def settings(self) -> dict[str, str]:
        """What outside of the user's code decides how fast and large a step is: versions and switches, nothing loaded."""

    def is_oom(self, error: BaseException) -> bool:
        """Whether an exception says that device memory has run out."""

    def versions(self) -> dict[str, str]:
        """The versions that decide how fast and how large a step is, as the backend that is loaded tells them."""


def current() -> Backend:
    """The backend that Keras will use in this environment.

    Raises:
        UsageError: it is one that autofit does not know.
    """
    name = os.environ.get("KERAS_BACKEND", "tensorflow")
    if name != "tensorflow":
        raise UsageError(f"KERAS_BACKEND={name} is not supported yet; autofit takes tensorflow")
    return TensorFlow()
