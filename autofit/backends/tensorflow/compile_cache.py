"""Let the processes of a tune share what is compiled for a GPU: XLA's programs, its choice of kernels, and CUDA's kernels.

A tune starts about twenty processes, and each would compile the same steps anew. XLA's caches live as long as the tune, in
its folder. CUDA keeps its own between programs; TensorFlow has code that CUDA must compile for GPUs of compute capability
9.0 and newer, which is more than CUDA keeps by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_TF_FLAGS, _XLA_FLAGS = "TF_XLA_FLAGS", "XLA_FLAGS"
_FIRST_VERSION = (2, 21)  # of TensorFlow that is known to have the flags: XLA ends a program that sets an unknown one
_CUDA_CACHE_BYTES = 4 * 2**30  # the most that CUDA allows


def environment(present: Mapping[str, str], folder: Path, version: str) -> dict[str, str]:
    """Return the variables that turn the caches on, beside those that the user has set.

    Args:
        present: the environment of the user's program.
        folder: where XLA's caches are kept.
        version: of TensorFlow.
    """
    variables = {"CUDA_CACHE_MAXSIZE": present.get("CUDA_CACHE_MAXSIZE", str(_CUDA_CACHE_BYTES))}
    major, minor = (int(part) if part.isdigit() else 0 for part in (*version.split("."), "0")[:2])
    if (major, minor) < _FIRST_VERSION:
        return variables
    for name, flag in (
        (_TF_FLAGS, f"--tf_xla_persistent_cache_directory={folder}"),
        (_XLA_FLAGS, f"--xla_gpu_per_fusion_autotune_cache_dir={folder}"),
    ):
        flags = present.get(name, "")
        if flag.partition("=")[0] not in flags:
            variables[name] = f"{flags} {flag}".strip()
    return variables
