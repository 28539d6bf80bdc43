"""What a trial's process needs of a Keras backend."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Protocol

from autofit.records.machine import Device
from autofit.records.trial import Footprint


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
