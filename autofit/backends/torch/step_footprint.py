"""Estimate the memory of a train step by counting the tensors of steps on two small batches (loads
torch).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from autofit.backends import absent_gpu
from autofit.backends.protocol import TrainStep, bytes_of_optimizers, bytes_of_variables
from autofit.records.description import Footprint
from autofit.records.machine import Device

COUNTED = "tensors of two small steps"
# relative to the growth of a process on a CPU, on which kernels take more memory; the tensors of a
# batch size are within 0.03 of the line through two other sizes (measured: nine models on a CPU);
# likewise on a GPU, on which libraries choose workspaces, and the allocator rounds sizes up
# (assumed)
_ERROR = 0.5
_ABSOLUTE_ERROR_BYTES = 4 * 2**20
# in samples; two sizes define a line, and a batch of one sample may be a special case
_SMALL_SIZES: tuple[int, ...] = (2, 6)


# torch is not installed where types are checked
class LiveBytes(TorchDispatchMode):  # type: ignore[misc]
    """Counts the bytes of the tensors that operations create while the mode is active.

    A storage counts from the operation that creates it until it is freed, whether a variable,
    autograd or Python holds it. Temporary buffers inside a kernel do not count. `after_each` lists
    the bytes held after each operation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.after_each: list[int] = []
        self._live = WeakIdKeyDictionary()  # bytes by storage

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        storages = [
            leaf.untyped_storage()
            for leaf in tree_leaves(made)
            if isinstance(leaf, torch.Tensor)
        ]
        self._live.update({storage: storage.nbytes() for storage in storages})
        self.after_each.append(sum(self._live.values()))
        return made


class StepFootprint:
    """Estimates the memory of a train step: its variables, and the step's tensors extrapolated
    along a line.
    """

    def __init__(self, step: TrainStep) -> None:
        self._model = model = step.model  # it is built, and trained for some steps
        model._symbolic_build(data_batch=step.batch)
        updates = int(model.optimizer.iterations)
        sizes = _SMALL_SIZES
        if step.multiple_of is None:
            sizes = (step.own_size,)
        elif step.multiple_of > 1:
            sizes = (step.multiple_of, 2 * step.multiple_of)
        self._runs = [(size, self.step_bytes(step.batch, size)) for size in sizes]
        self.optimizer_bytes = bytes_of_optimizers(model)
        self.uses_model_optimizer = int(model.optimizer.iterations) > updates

    def estimates(
        self, batch_sizes: Sequence[int], *, compile_all: bool
    ) -> Iterator[Footprint]:
        # the bytes held after each operation are extrapolated, and the highest counts
        first, low = self._runs[0]
        last, high = self._runs[-1]
        if len(low) != len(high):  # the operations differ between the two sizes
            low = [max(low)]
            high = [max(high)]
        start = np.array(low, float)
        rise = np.array(high, float) - start
        weights = [*self._model.variables, *self._model.metrics_variables]
        for size in sorted({first} if last == first else set(batch_sizes)):
            grown = rise * (size - first) / (last - first) if last > first else 0.0
            parts = {
                "weights": bytes_of_variables(weights),
                "optimizer": self.optimizer_bytes,
                "temporaries": max(0, round(float((start + grown).max()))),
            }
            yield Footprint(size, parts, COUNTED, _ERROR, _ABSOLUTE_ERROR_BYTES)

    def on_gpu(self, gpu: Device, batch_size: int) -> Footprint:
        return absent_gpu.counted(next(self.estimates((batch_size,), compile_all=True)))

    def step_bytes(self, batch: Any, size: int) -> list[int]:
        """Return the bytes held after each operation of a step: batch, activations, gradients and
        temporaries.
        """
        data = keras.tree.map_structure(lambda leaf: _resized(leaf, size), batch)
        self._model.train()
        count = LiveBytes()
        with count:
            self._model.train_step(
                keras.tree.map_structure(keras.ops.convert_to_tensor, data)
            )
        self._model.zero_grad()
        self._model.eval()
        return count.after_each


def _resized(leaf: Any, size: int) -> Any:
    if np.ndim(leaf) == 0:
        return leaf
    rows = np.arange(size) % max(1, int(leaf.shape[0]))
    return np.asarray(leaf)[rows]
