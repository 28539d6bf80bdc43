"""Patterns that detect exhausted memory in errors, and in the logs of XLA's allocator and CUDA's
libraries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# A failed GPU allocation does not always raise an out-of-memory error: errors have other types if
# memory is missing for a copy to the GPU, for cuDNN's choice of an algorithm, or for a library's
# own buffers. Conversely, a log line about exhausted memory does not always mean a failure: the
# allocator may repeat a request to the driver with a smaller size, and autotuning may choose
# another algorithm.

# logged by NCCL if the buffers for exchanging gradients do not fit
_NCCL = r"Cuda failure (?:\d+ )?'out of memory'"
# excludes lines of severity INFO
_NOT_INFO = r"(?!\d{4}-\d\d-\d\d [\d:.]+: I |I\d{4} )"
# the text of an error that reports a failed allocation on a device
FAILED_ALLOCATION = re.compile(
    r"OOM when allocating tensor|failed to allocate memory|out of memory while trying to allocate"
    r"|out of memory trying to (?:allocate|instantiate command buffer)|out of memory allocating"
    r"|Dst tensor is not initialized|failed to allocate the scratch space|CUDA_ERROR_OUT_OF_MEMORY"
    rf"|(?:CUDNN|CUBLAS)_STATUS_ALLOC_FAILED|{_NCCL}",
    re.IGNORECASE,
)

# errors of TensorFlow or JAX about host memory; TensorFlow quotes Python's error
HOST = re.compile(
    r"(?<!OutOf)MemoryError\b|pinned host (?:memory|staging)|std::bad_alloc"
)

# errors about memory on the GPU's chip: a kernel needs too much of it, whatever the batch size
_ON_CHIP = (
    r"(?:shared|tensor) memory (?:size )?limit|out of resource: (?:shared|tensor) memory"
    r"|register spill"
)
ON_CHIP = re.compile(_ON_CHIP, re.IGNORECASE)

# the patterns of `Backend` for XLA and CUDA's libraries; first failed operations and fatal errors,
# not lines of autotuning or of the driver, after which training goes on
OOM_LINES = re.compile(
    rf"^{_NOT_INFO}(?!.*(?:not a failure|HTTP re|message larger than|(?i:{_ON_CHIP}))).*?"
    r"(?P<report>OOM when allocating tensor|[Rr]an out of memory trying to allocate"
    r"|OP_REQUIRES failed.*(?:RESOURCE_EXHAUSTED|Resource exhausted)"
    r"|(?:F\d{4} |: F ).*(?:RESOURCE_EXHAUSTED|out of memory))"
)
SHORTAGE_LINES = re.compile(
    r"(?P<report>[Rr]an out of memory trying to allocate"
    rf"|failed to allocate .*CUDA_ERROR_OUT_OF_MEMORY|NCCL WARN {_NCCL})"
)
SUSPECTS = re.compile(
    r"No algorithm worked|failed to create cublas handle|could not create cudnn handle"
    r"|without BLAS support"
    r"|cuDNN launch failure|Failed to get convolution algorithm|Blas x?GEMM launch failed"
    r"|CUDNN_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR|EXECUTION_FAILED)"
    r"|CUBLAS_STATUS_NOT_INITIALIZED"
    r"|DNN library (?:is not found|initialization failed)|Error invoking NCCL"
    r"|NCCL operation \S+ failed|Autotuning failed for HLO|No valid config found"
    r"|No reference output found|Autotuner could not (?:find|compile) any",
    re.IGNORECASE,
)
OUTSIDE_POOL = re.compile(
    r"create cublas handle|create cudnn handle|without BLAS support"
    r"|CUBLAS_STATUS_(?:NOT_INITIALIZED|ALLOC_FAILED)"
    r"|CUDNN_STATUS_NOT_INITIALIZED|DNN library initialization failed|instantiate command buffer"
    # logged before the pool requests less
    rf"|failed to allocate .* from device: .*CUDA_ERROR_OUT_OF_MEMORY"
    r"|load in-memory CUBIN|DevicePrimaryCtxRetain"  # a kernel's code, and CUDA's context
    rf"|{_NCCL}",
    re.IGNORECASE,
)
# What CUDA and XLA say of a GPU for which a backend was not built, in errors and logs. TensorFlow's
# warning at its start is not among it: CUDA may still compile the code for such a GPU.
NO_CODE = re.compile(
    r"no kernel image|CUDA_ERROR_(?:INVALID_PTX|INVALID_HANDLE|NO_BINARY)"
    r"|Autotuner could not compile any|does not support target 'sm_"
)


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and all its causes and contexts, direct and indirect, each once."""
    links: list[BaseException | None] = [error]
    seen = set()
    # which grows
    for link in links:
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            yield link
            links += [link.__cause__, link.__context__]


def message_of(error: BaseException) -> str:
    """Return an exception's message without lone surrogates, which JSON does not take."""
    return str(error).encode(errors="replace").decode()


def is_of_tensorflow(error: BaseException) -> bool:
    """Return whether an error is TensorFlow's `ResourceExhaustedError`, without loading
    TensorFlow.
    """
    kind = type(error)
    return kind.__name__ == "ResourceExhaustedError" and kind.__module__.startswith(
        "tensorflow."
    )
