"""Host memory of a config by part, from the description alone. Pure.

    H = process + arrays + tensors + max(step on a CPU, conversion) + (q + p + t)·b·s + w·(U + c·b·s)

with q batches queued, p more between queue and step (and those of the steps under way, on JAX), t threads that each make
one, w worker processes, b samples a batch and s bytes a sample. Arrays are those that training reads from files, tensors
the copies that `fit` makes of arrays, and conversion what it needs more while it makes them, before the first step. A
forked worker holds U bytes of its own (the pages it writes) and c batches. AUTOTUNE counts as a thread for each core, and
as a queue of `AUTOTUNE_BATCHES`.
"""

from __future__ import annotations

import numpy as np

from autofit.records.description import Description
from autofit.records.trial import FitConfig
from autofit.search.config_arrays import ConfigArrays, Vector

PASSING_BATCHES = 3
"""Batches between queue and step: in training, prefetched, being copied (measured: tests/trial/test_keras_facts.py)."""

WORKER_BYTES = 60 * 2**20
"""Bytes of shared pages that a forked worker process writes, and so copies (measured: tests/benchmarks/memory.py)."""

WORKER_BATCHES = 2
"""Batches that a worker process holds: the one that it makes, and its pickled copy."""

_OF_ARRAYS = ("arrays", "tensors", "conversion")  # parts of data that is arrays only
_LOOK_AHEAD_BATCHES = 1  # Keras holds max_queue_size + 1 (measured: tests/trial/test_keras_facts.py)


def queued_batches(configs: ConfigArrays) -> Vector:
    """Batches that are ready when the queue is full; 0 without a queue."""
    return np.where(configs.queued, configs.queue + _LOOK_AHEAD_BATCHES, 0.0)


def held_batches(configs: ConfigArrays) -> Vector:
    """Finished batches that the training process holds: in the queue, and between queue and step."""
    return queued_batches(configs) + PASSING_BATCHES


def worker_threads(configs: ConfigArrays) -> Vector:
    """Threads that make batches beside the training thread."""
    return np.where(configs.queued & ~configs.processes, configs.workers, 0.0)


def worker_processes(configs: ConfigArrays) -> Vector:
    """Processes that make batches beside the training process."""
    return np.where(configs.processes, configs.workers, 0.0)


def held_bytes(description: Description) -> int:
    """Bytes of the process and the data that it holds, whatever the config."""
    return description.process_bytes + description.mapped_bytes + description.tensor_bytes


def host_bytes_by_part(description: Description, config: FitConfig, step_bytes: int, cores: int = 1) -> dict[str, int]:
    """Estimate the host memory of a config by part, bytes.

    Args:
        description: of the workload; only its bytes are used.
        config: the knobs.
        step_bytes: peak of the train step where it runs on the CPU, without the data's tensors; 0 on an accelerator.
        cores: CPU cores, for AUTOTUNE.
    """
    configs = ConfigArrays.of([config], cores)
    batch_bytes = (config.batch_size or 1) * description.sample_bytes
    queue = int(held_batches(configs)[0] + worker_threads(configs)[0] + description.steps_ahead) * batch_bytes
    parts = {
        "process": description.process_bytes,
        "arrays": description.mapped_bytes,
        "tensors": description.tensor_bytes,
        "conversion": max(0, description.conversion_bytes - step_bytes - queue),
        "step": step_bytes,
        "queue": queue,
        "worker_processes": int(worker_processes(configs)[0]) * (WORKER_BYTES + WORKER_BATCHES * batch_bytes),
    }
    return {name: size for name, size in parts.items() if size or name not in _OF_ARRAYS}
