"""Wait for memory of a GPU that others hold: an OOM beside them would be no evidence of what a config takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from autofit.errors import CancelledError, TrialProcessError
from autofit.machine import gpus
from autofit.records.machine import Device
from autofit.records.states import Phase
from autofit.records.units import format_bytes

_SLACK_BYTES = 256 * 2**20  # that the GPU's free memory may fall without a word: displays, other contexts
_WAIT_SECONDS = 60.0  # for memory that others have just taken, or a trial has not yet given back
_POLL_SECONDS = 0.1


def wait_for_room(device: Device, limit_bytes: int, cancelled: threading.Event) -> Iterator[Phase]:
    """Wait while others hold memory of the GPU that they did not hold when the limit was set; yields that it waits.

    Args:
        device: the GPU as it was when the limit was set.
        limit_bytes: of the trial.
        cancelled: ends the wait when it is set.

    Raises:
        TrialProcessError: they keep it.
        CancelledError: `cancelled` was set.
    """
    began = time.monotonic()
    wanted_bytes = min(limit_bytes, device.free_bytes - _SLACK_BYTES)
    is_announced = False
    while (used_bytes := gpus.used_bytes(device, ())[0]) is not None:
        free_bytes = device.total_bytes - used_bytes
        if free_bytes >= wanted_bytes:
            return
        if time.monotonic() - began > _WAIT_SECONDS:
            raise TrialProcessError(
                f"others have taken the memory of {device.name} during the tune: {format_bytes(free_bytes)} are free, "
                f"{format_bytes(wanted_bytes)} are needed ({gpus.holders(device) or 'the driver does not name them'}). "
                "End the other processes, and run this again; finished trials are kept"
            )
        if not is_announced:
            yield Phase.WAITING_FOR_GPU
        is_announced = True
        if cancelled.wait(_POLL_SECONDS):
            raise CancelledError("the tune was cancelled")
