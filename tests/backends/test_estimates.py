"""Estimates of a step's memory, and errors of exhausted memory, as the installed JAX and torch give them."""

import os
import pkgutil
import subprocess
import sys

import numpy as np
import pytest

from autofit import backends
from autofit.records.states import FailureKind
from autofit.records.trial import FitConfig
from autofit.search.memory import estimates
from tests import workloads as w
from tests.installed import needs

SIZES = (8, 32, 128)
DEVICE, HOST = FailureKind.DEVICE_OOM, FailureKind.HOST_OOM


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "share"), [(w.build_model, 0.02), (w.build_recurrent, 0.03), (lambda: w.build_model(filters=32), 0.03)]
)
def test_the_estimate_of_a_size_lies_on_the_line_of_two_others(launched, play, build, share):
    launcher = launched(build)
    whole = play(launcher, role="describe", batch_sizes=SIZES, compile_all=True)
    assert [footprint.batch_size for footprint in whole.footprints] == list(SIZES)
    few = play(launcher, role="describe", batch_sizes=SIZES)
    assert estimates(few.footprints, np.array([128]))[0] == pytest.approx(whole.footprints[-1].device_bytes, rel=share)
    parts = whole.footprints[0].device_bytes_by_part
    assert parts["weights"] >= whole.parameter_bytes
    assert parts["optimizer"] == whole.optimizer_bytes


def test_a_model_that_takes_batches_of_one_size_is_estimated_for_that(backend, launched, play):
    described = play(launched(w.build_for_one_size), FitConfig(8), role="describe", batch_sizes=SIZES)
    if backend == "torch":  # on which Keras cannot train a stateful LSTM
        assert "modified by an inplace operation" in described.evidence.reason
        return
    assert described.fixed_batch_size == 8
    assert [footprint.batch_size for footprint in described.footprints] == [8]


LIVE_BYTES = """
import torch
from autofit.backends.torch.step_footprint import LiveBytes
with LiveBytes() as count:
    first = torch.ones(1000)
    second = first + 1
    view = second[10:]
    del first
    third = view * 2
    del second, view, third
print(count.after_each)
"""


def test_the_tensors_of_torch_count_while_they_live():
    needs("torch")
    # in a process without TensorFlow: torch.compile's Triton crashes when it is loaded after it
    command = [sys.executable, "-c", LIVE_BYTES]
    env = {**os.environ, "KERAS_BACKEND": "torch"}
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[4000, 8000, 8000, 7960]"


@pytest.mark.parametrize(
    ("kind", "text", "memory"),
    [
        ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB.", DEVICE),
        ("builtins.RuntimeError", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED", DEVICE),
        ("builtins.RuntimeError", "[enforce fail] DefaultCPUAllocator: can't allocate memory: you", HOST),
        ("builtins.RuntimeError", "mat1 and mat2 shapes cannot be multiplied", None),
        (
            "jax.errors.JaxRuntimeError",
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate",
            DEVICE,
        ),
        ("jax.errors.JaxRuntimeError", "RESOURCE_EXHAUSTED: failed to allocate pinned host memory", HOST),
        ("jax.errors.JaxRuntimeError", "INVALID_ARGUMENT: shapes do not match", None),
    ],
)
def test_what_a_backend_raises(kind, text, memory):
    name = "jax" if kind.startswith("jax") else "torch"
    needs(name)
    assert backends.named(name).exhausted(pkgutil.resolve_name(kind)(text)) is memory
