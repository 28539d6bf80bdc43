"""Estimates of memory, batch size by batch size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autofit.records.description import Description
from autofit.records.machine import Machine
from autofit.records.trial import FitConfig, Limits


@dataclass(frozen=True)
class EstimateRow:
    """Estimated memory of one batch size.

    The upper bounds hold with 99 % probability; `fits` says whether both are within the limits.
    """

    batch_size: int
    device_bytes_by_part: Mapping[str, int]
    host_bytes_by_part: Mapping[str, int]
    device_upper_bytes: int
    host_upper_bytes: int
    fits: bool

    @property
    def device_bytes(self) -> int:
        """Total device memory."""
        return sum(self.device_bytes_by_part.values())

    @property
    def host_bytes(self) -> int:
        """Total host memory."""
        return sum(self.host_bytes_by_part.values())


@dataclass(frozen=True)
class Estimate:
    """Estimated memory of a workload by batch size, under the other knobs of `config`; nothing is trained.

    `largest_batch_size` is the largest that fits the limits; None if a batch of one sample does not.
    """

    description: Description
    config: FitConfig
    limits: Limits
    machine: Machine
    device: str
    rows: tuple[EstimateRow, ...]
    largest_batch_size: int | None

    @property
    def method(self) -> str:
        """The method of the device memory estimate."""
        return self.description.footprints[0].method

    @property
    def relative_error(self) -> float:
        """95 % of such estimates of device memory are within this share of the measured peak, or `absolute_error_bytes`."""
        return self.description.footprints[0].relative_error

    @property
    def absolute_error_bytes(self) -> int:
        """The least error bound of such an estimate in bytes, which governs for small programs."""
        return self.description.footprints[0].absolute_error_bytes
