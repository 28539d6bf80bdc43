"""The outputs that `predict` keeps.

Keras 3.15 keeps the outputs of all batches on the device until `predict` ends, then joins them to arrays in host memory: on
TensorFlow it joins them on the device, on the other backends it copies each to the host first (JAX on a CPU shares the
memory instead). On a CPU, this takes 3, 2 and 3 times the size of the outputs with TensorFlow, JAX and torch (measured). A
trial predicts a few batches only, so it holds as much memory as the outputs of all samples would take, and drops its own
unless the user's code may read them.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from autofit import backends
from autofit.errors import UsageError
from autofit.records.states import Phase
from autofit.records.units import format_bytes
from autofit.trial.worker.job import TrialContext

_PIECE_BYTES = 2**26  # outputs are kept batch by batch
_READING_SECONDS = 0.4  # how long all is held: the driver reads the memory of processes four times a second at most


class KeptOutputs:
    """The memory of the outputs of `samples` samples; of none if that number is unknown."""

    def __init__(self, samples: int | None) -> None:
        self._samples = samples
        self._bytes = 0
        self._held: list[Any] = []
        self._placeholder: Any = None

    def hold(self, context: TrialContext, outputs: Any) -> Any:
        """Hold the memory of all outputs from the first batch on; return a placeholder for those of a batch.

        Raises:
            UsageError: the outputs take more memory than the device or the host may use.
        """
        if self._placeholder is None:
            import keras  # heavy: must stay out of the parent

            self._placeholder = keras.ops.ones((1,))
            self._bytes = self._size(keras.tree.flatten(outputs))
            limits = context.spec.limits
            for place, limit_bytes in (("device", limits.device_bytes), ("host", limits.host_bytes)):
                if limit_bytes is not None and self._bytes > limit_bytes:
                    raise UsageError(
                        f"predict keeps the outputs of all {self._samples:,} samples until it ends: "
                        f"{format_bytes(self._bytes)}, more than the limit of {place} memory, {format_bytes(limit_bytes)}. "
                        "Predict a part of the data at a time, and tune with such a part",
                        key="call",
                    )
            self._held = self._pieces()
        return self._placeholder

    def join(self, context: TrialContext) -> None:
        """Take the memory that Keras takes to join the outputs, for a moment, then free all."""
        if self._bytes:
            context.enter(Phase.JOINING)
            backend = backends.current()
            joined = self._pieces() if backend.uses_tfdata else []
            is_copied = context.placement.device is not None or backend.name == "torch"
            arrays = [np.ones(self._bytes, np.uint8) for _ in range(1 + is_copied)]  # the result, and a copy of the tensors
            time.sleep(_READING_SECONDS)
            del joined, arrays
        self._held = []

    def _size(self, outputs: list[Any]) -> int:
        """Return the bytes of the outputs of all samples, given those of a batch; ragged tensors and texts count as 0."""
        dense = [output for output in outputs if len(output.shape) and None not in output.shape]
        rows = (int(np.prod(output.shape[1:])) * _itemsize(output) for output in dense)
        return sum(rows) * (self._samples or 0)

    def _pieces(self) -> list[Any]:
        """Return tensors on the device of as many bytes as all outputs; ones are written, zeros may take no memory."""
        import keras  # heavy: must stay out of the parent

        whole, rest = divmod(self._bytes, _PIECE_BYTES)
        return [keras.ops.ones((max(1, size // 4),), "float32") for size in [_PIECE_BYTES] * whole + [rest] * (rest > 0)]


def _itemsize(tensor: Any) -> int:
    import keras  # heavy: must stay out of the parent

    dtype = keras.backend.standardize_dtype(tensor.dtype)
    return 0 if dtype == "string" else int(np.dtype(dtype).itemsize)
