"""Records of a host and its accelerators."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autofit.records.units import Count, Positive


@dataclass(frozen=True)
class Device:
    """One accelerator, as its driver reports it."""

    index: int  # may change when the host restarts; `uuid` does not
    name: str
    uuid: str
    total_bytes: Count
    free_bytes: Count
    # the processes that hold memory of the device, for display
    held_by: tuple[str, ...] = ()
    driver: str = ""  # version of the driver
    # the generation of a CUDA GPU, such as (8, 9)
    compute_capability: tuple[int, int] | None = None


@dataclass(frozen=True)
class Placement:
    """The devices that one training uses: GPUs of one model, or the CPU as one or several logical
    devices.
    """

    gpus: tuple[Device, ...] = ()
    count: Positive = 1  # of the GPUs, or of logical CPU devices

    @classmethod
    def on(cls, *gpus: Device) -> Placement:
        """Return the placement on these GPUs, or on the CPU as one device if none is given."""
        return cls(gpus, max(1, len(gpus)))

    @property
    def device(self) -> Device | None:
        """The first GPU, which represents all of them; None for the CPU."""
        return self.gpus[0] if self.gpus else None

    def shared(self, batch_size: int) -> int:
        """Round a batch size up to a multiple of the number of devices, so that they share a batch
        evenly.
        """
        return math.ceil(batch_size / self.count) * self.count

    @property
    def name(self) -> str:
        if not self.gpus:
            return "CPU" if self.count == 1 else f"CPU as {self.count} devices"
        return (
            self.gpus[0].name
            if self.count == 1
            else f"{self.count} x {self.gpus[0].name}"
        )


ON_CPU = Placement()  # the CPU as one device


@dataclass(frozen=True)
class Machine:
    """A host."""

    system: str
    python: str
    processor: str
    cores: Positive
    memory_bytes: Count  # the smaller of its RAM and the limit of its cgroup
    available_bytes: Count  # the part of this memory that is free now
    devices: tuple[Device, ...] = ()
    host: str = ""  # the host name
