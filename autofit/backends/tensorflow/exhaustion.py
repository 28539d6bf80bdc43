"""Signs that TensorFlow ran out of memory, in exceptions and in logs.

A GPU's allocator that fails does not always end in a `ResourceExhaustedError`: a copy to the GPU, cuDNN's choice of an
algorithm and the libraries' own buffers fail with other types. And not every line of a log that names exhausted memory is a
failure: the allocator asks the driver for less, and autotuning takes another algorithm.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from autofit.records.states import FailureKind

_INFORMATION = r"(?!\d{4}-\d\d-\d\d [\d:.]+: I |I\d{4} )"  # a line is not of that severity
_FAILED_ALLOCATION = re.compile(
    r"OOM when allocating tensor|failed to allocate memory|out of memory while trying to allocate"
    r"|out of memory trying to (?:allocate|instantiate command buffer)|out of memory allocating"
    r"|Dst tensor is not initialized|failed to allocate the scratch space|CUDA_ERROR_OUT_OF_MEMORY"
    r"|(?:CUDNN|CUBLAS)_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)
_HOST = re.compile(r"(?<!OutOf)MemoryError\b|pinned host memory|std::bad_alloc")  # TensorFlow passes on Python's error
_NO_MEMORY = re.compile(r"message larger than max|HTTP (?:request|response)|quota", re.IGNORECASE)  # of a network

OOM_LINES = re.compile(
    rf"^{_INFORMATION}(?!.*(?:not a failure|HTTP re|message larger than)).*?"
    r"(?P<report>OOM when allocating tensor|[Rr]an out of memory trying to allocate"
    r"|OP_REQUIRES failed.*(?:RESOURCE_EXHAUSTED|Resource exhausted)"
    r"|(?:F\d{4} |: F ).*(?:RESOURCE_EXHAUSTED|out of memory))"
)
"""See `Backend.oom_lines`: of failed operations and fatal errors, not of autotuning and the driver, which go on."""

SHORTAGE_LINES = re.compile(
    r"(?P<report>[Rr]an out of memory trying to allocate|failed to allocate .*CUDA_ERROR_OUT_OF_MEMORY)"
)
"""See `Backend.shortage_lines`."""

FALLBACK_LINES = re.compile(r"ran out of memory trying to allocate .*not a failure")
"""See `Backend.fallback_lines`."""

SUSPECTS = re.compile(
    r"No algorithm worked|failed to create cublas handle|could not create cudnn handle|without BLAS support"
    r"|cuDNN launch failure|Failed to get convolution algorithm|Blas x?GEMM launch failed"
    r"|CUDNN_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR|EXECUTION_FAILED)|CUBLAS_STATUS_NOT_INITIALIZED"
    r"|DNN library (?:is not found|initialization failed)",
    re.IGNORECASE,
)
"""See `Backend.suspects`."""

OUTSIDE_POOL = re.compile(
    r"create cublas handle|create cudnn handle|without BLAS support|CUBLAS_STATUS_(?:NOT_INITIALIZED|ALLOC_FAILED)"
    r"|CUDNN_STATUS_NOT_INITIALIZED|DNN library initialization failed|instantiate command buffer"
    r"|failed to allocate .* from device: .*CUDA_ERROR_OUT_OF_MEMORY",  # of the driver, before the pool takes less
    re.IGNORECASE,
)
"""See `Backend.outside_pool`."""


def exhausted(error: BaseException, errors: Any) -> FailureKind | None:
    """See `Backend.exhausted`.

    Args:
        error: what was raised; what it came from counts, too.
        errors: the module `tf.errors`. Errors of the user's own types stay his, whatever they say.
    """
    for link in _chain(error):
        message = str(link)
        if isinstance(link, errors.OpError):
            if _HOST.search(message):
                return FailureKind.HOST_OOM
            is_exhausted = isinstance(link, errors.ResourceExhaustedError) and not _NO_MEMORY.search(message)
            if is_exhausted or _FAILED_ALLOCATION.search(message):
                return FailureKind.DEVICE_OOM
        elif type(link) is RuntimeError and "RESOURCE_EXHAUSTED: " in message and _FAILED_ALLOCATION.search(message):
            return FailureKind.DEVICE_OOM  # a status of C++ that reached Python without an operation
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception, and those that it came from."""
    waiting, seen = [error], set()
    while waiting:
        link = waiting.pop(0)
        if id(link) not in seen:
            seen.add(id(link))
            yield link
            waiting += [cause for cause in (link.__cause__, link.__context__) if cause is not None]
