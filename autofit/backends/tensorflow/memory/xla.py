"""XLA's own buffer assignment of a train step: compiled, not run (loads TensorFlow)."""

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

from autofit.backends.tensorflow.memory.shapes import forms

_REPORT = re.compile(r"^Total bytes used: (\d+)", re.MULTILINE)
_FLAGS = "XLA_FLAGS"


def step_bytes(model: Any, batch: Any, batch_size: int) -> int | None:
    """All buffers of the compiled train step, the model's and the optimizer's variables included, in bytes.

    XLA writes a report of each compilation when it is told to by its flags, which it reads at the first one in a process.

    Args:
        model: built and compiled, its optimizer built.
        batch: arrays, (x, y) or (x, y, sample_weight), first axis the samples.
        batch_size: samples to compile for.

    Returns:
        None when XLA cannot compile the step, or leaves no report because it had compiled something before.
    """
    reports, form = _reports(), forms(batch, batch_size)

    def step(*leaves: Any) -> Any:
        return model.train_step(keras.tree.pack_sequence_as(form, leaves))

    try:
        compiled = tf.function(step, jit_compile=True)
        compiled.experimental_get_compiler_ir(*keras.tree.flatten(form))("optimized_hlo")
    except (tf.errors.OpError, ValueError, NotImplementedError):
        return None
    texts = [file.read_text() for file in reports.glob("*memory-usage-report.txt")]
    shutil.rmtree(reports, ignore_errors=True)  # XLA makes it anew
    return max((int(found[1]) for text in texts for found in _REPORT.finditer(text)), default=None)


@functools.cache
def _reports() -> Path:
    """The folder for XLA's reports."""
    folder = Path(tempfile.mkdtemp(prefix="autofit-xla-"))
    os.environ[_FLAGS] = f"{os.environ.get(_FLAGS, '')} --xla_dump_to={folder} --xla_dump_hlo_as_text".strip()
    return folder
