"""A CPU as several devices of JAX, to try what trains on several GPUs."""

from __future__ import annotations

STEPS_AHEAD = 32
"""The most steps that JAX's client for the CPU begins before they are over (measured: tests/backends/test_facts.py)."""

_SPARE_THREADS = 4  # of each device, for what else the client does meanwhile (assumed)


def variables(count: int) -> dict[str, str]:
    """The variables, to be set before JAX is imported, that make a CPU so many devices.

    In an all-reduce each device holds a thread until the others arrive. Steps that were begun share one pool, of a thread a
    core: on few cores those of a later step take the threads that an earlier one waits for, and the training hangs
    (measured: 192 samples on 2 devices of 2 cores, every time; `jax_cpu_enable_async_dispatch` does not change it). So the
    pool gets a thread for each device and step.
    """
    return {"JAX_NUM_CPU_DEVICES": str(count), "PJRT_NPROC": str(count * (STEPS_AHEAD + _SPARE_THREADS))}
