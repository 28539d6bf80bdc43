"""Estimates of a step's memory, as the installed JAX and torch give them."""

import os
import subprocess
import sys

from tests.installed import needs

BACKEND = "jax"
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
    environment = {**os.environ, "KERAS_BACKEND": "torch"}
    printed = subprocess.check_output([sys.executable, "-c", LIVE_BYTES], env=environment, text=True)
    assert printed.strip() == "[4000, 8000, 8000, 7960]"
