"""What a host and its accelerators are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """One accelerator, as the driver reports it; `index` is the driver's, `uuid` names it for good.

    `held_by` says in words which processes hold how much of its memory; `driver` is the driver's version.
    """

    index: int
    name: str
    uuid: str
    total_bytes: int
    free_bytes: int
    held_by: tuple[str, ...] = ()
    driver: str = ""


@dataclass(frozen=True)
class Machine:
    """What a host has: memory is what this process may use (the smaller of RAM and the cgroup's limit); `host` its name."""

    system: str
    python: str
    processor: str
    cores: int
    memory_bytes: int
    available_bytes: int
    shared_memory_bytes: int = 0
    devices: tuple[Device, ...] = ()
    host: str = ""
