"""XLA's buffer assignment of a train step, compiled without running it (loads TensorFlow)."""

from __future__ import annotations

import functools
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from autofit.backends.tensorflow.memory.shapes import batch_specs

_REPORT = re.compile(r"^Total bytes used: (\d+)", re.MULTILINE)
_FLAGS = "XLA_FLAGS"


def step_bytes(model: Any, batch: Any, batch_size: int) -> int | None:
    """Return the bytes of all buffers of the compiled train step, including the model's and the optimizer's variables.

    XLA writes a memory-usage report of each compilation if its flags request one. It reads the flags once per process.

    Args:
        model: built and compiled.
        batch: arrays in the structure that Keras passes to `train_step`.
        batch_size: samples to compile for.

    Returns:
        None if XLA cannot compile the step, or compiled something before the flags were set and so writes no report.
    """
    reports, specs = _reports(), batch_specs(batch, batch_size)

    def step(*leaves: Any) -> Any:
        return model.train_step(keras.tree.pack_sequence_as(specs, leaves))

    try:
        compiled = tf.function(step, jit_compile=True)
        compiled.experimental_get_compiler_ir(*keras.tree.flatten(specs))("optimized_hlo")
    except (tf.errors.OpError, ValueError, NotImplementedError):
        return None
    texts = [file.read_text() for file in reports.glob("*memory-usage-report.txt")]
    shutil.rmtree(reports, ignore_errors=True)  # XLA creates it again
    return max((int(match[1]) for text in texts for match in _REPORT.finditer(text)), default=None)


@functools.cache
def _reports() -> Path:
    """Create the folder for XLA's reports and request them."""
    folder = Path(tempfile.mkdtemp(prefix="autofit-xla-"))
    os.environ[_FLAGS] = f"{os.environ.get(_FLAGS, '')} --xla_dump_to={folder} --xla_dump_hlo_as_text".strip()
    return folder
