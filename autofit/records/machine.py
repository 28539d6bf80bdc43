"""A host and its accelerators."""

from __future__ import annotations

from dataclasses import dataclass

from autofit.records.bounds import Count, Positive


@dataclass(frozen=True)
class Device:
    """One accelerator, as its driver reports it.

    `index` may change from boot to boot, `uuid` does not. `held_by` describes the processes that hold its memory, for
    people; `driver` is the driver's version. `compute_capability` is the generation of a CUDA GPU, as (8, 9).
    """

    index: int
    name: str
    uuid: str
    total_bytes: Count
    free_bytes: Count
    held_by: tuple[str, ...] = ()
    driver: str = ""
    compute_capability: tuple[int, int] | None = None


@dataclass(frozen=True)
class Machine:
    """A host; `memory_bytes` is the smaller of its RAM and the cgroup's limit, `host` its name."""

    system: str
    python: str
    processor: str
    cores: Positive
    memory_bytes: Count
    available_bytes: Count
    shared_memory_bytes: Count = 0
    devices: tuple[Device, ...] = ()
    host: str = ""
