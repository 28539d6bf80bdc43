"""What a config will hold in host memory, by part, from what is known before anything is trained. Pure.

    H = process + device part on a CPU + (q + p)·b·s + w·(U + c·b·s)

with q batches queued, p more in passing, w worker processes, b samples a batch, s bytes a sample; U is what a forked worker
has for itself (the pages it writes), c the batches that a worker process holds while it makes, pickles and sends one.
"""

from __future__ import annotations

import numpy as np

from autofit.records.trial import Description, FitConfig
from autofit.search.config_arrays import ConfigArrays, Vector

PASSING_BATCHES = 3
"""Batches between queue and step: one that is trained on, one prefetched, one being copied (measured: as the queue's)."""

WORKER_BYTES = 60 * 2**20
"""What a forked worker process writes of the pages it shares at first (measured: tests/benchmarks/memory.py)."""

WORKER_BATCHES = 2
"""Batches that a worker process holds: the one that it makes, and its pickled copy."""

_LOOK_AHEAD = 1  # Keras holds max_queue_size + 1 (measured: tests/trial/test_keras_facts.py)


def queued_batches(configs: ConfigArrays) -> Vector:
    """Batches that are ready when the queue is full; 0 where there is no queue."""
    return np.where(configs.queued, configs.queue + _LOOK_AHEAD, 0.0)


def held_batches(configs: ConfigArrays) -> Vector:
    """Batches that are done and that the process which trains holds: queued, and passing from the queue to the step."""
    return queued_batches(configs) + PASSING_BATCHES


def worker_threads(configs: ConfigArrays) -> Vector:
    """Threads that make batches beside the one that trains."""
    return np.where(configs.queued & ~configs.processes, configs.workers, 0.0)


def worker_processes(configs: ConfigArrays) -> Vector:
    """Processes beside the one that trains."""
    return np.where(configs.processes, configs.workers, 0.0)


def host_bytes_by_part(description: Description, config: FitConfig, step_bytes: int) -> dict[str, int]:
    """Host memory of a config by part, bytes.

    Args:
        description: of the workload; `process_bytes` and `sample_bytes` count.
        config: the knobs.
        step_bytes: the train step's peak where it runs on the CPU, 0 on an accelerator.
    """
    configs = ConfigArrays.of([config])
    batch_bytes = (config.batch_size or 1) * description.sample_bytes
    return {
        "process": description.process_bytes,
        "step": step_bytes,
        "queue": int(held_batches(configs)[0] + worker_threads(configs)[0]) * batch_bytes,
        "worker_processes": int(worker_processes(configs)[0]) * (WORKER_BYTES + WORKER_BATCHES * batch_bytes),
    }
