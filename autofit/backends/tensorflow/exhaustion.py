"""The errors with which TensorFlow reports that memory ran out."""

from __future__ import annotations

import re
from typing import Any

from autofit.backends.exhaustion import FAILED_ALLOCATION, chain
from autofit.records.states import FailureKind

_HOST = re.compile(r"(?<!OutOf)MemoryError\b|pinned host memory|std::bad_alloc")  # TensorFlow passes on Python's error
_NO_MEMORY = re.compile(r"message larger than max|HTTP (?:request|response)|quota", re.IGNORECASE)  # of a network


def exhausted(error: BaseException, errors: Any) -> FailureKind | None:
    """See `Backend.exhausted`.

    Args:
        error: what was raised; what it came from counts, too.
        errors: the module `tf.errors`. Errors of the user's own types stay his, whatever they say.
    """
    for link in chain(error):
        message = str(link)
        if isinstance(link, errors.OpError):
            if _HOST.search(message):
                return FailureKind.HOST_OOM
            is_exhausted = isinstance(link, errors.ResourceExhaustedError) and not _NO_MEMORY.search(message)
            if is_exhausted or FAILED_ALLOCATION.search(message):
                return FailureKind.DEVICE_OOM
        elif type(link) is RuntimeError and "RESOURCE_EXHAUSTED: " in message and FAILED_ALLOCATION.search(message):
            return FailureKind.DEVICE_OOM  # a status of C++ that reached Python without an operation
    return None
