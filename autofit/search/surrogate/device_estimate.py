"""The estimate of device memory for every batch size, from the footprints of a few."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autofit.records.description import Description, Footprint
from autofit.search.config_arrays import Vector


def least_device_bytes(description: Description, batch_size: int) -> int:
    """A lower bound of a batch's device memory, bytes: the estimate less twice its error, or the variables."""
    variables = description.parameter_bytes + description.optimizer_bytes
    if not description.footprints:
        return variables
    estimated = estimated_bytes(description.footprints, batch_size)
    return max(variables, round(estimated - 2 * description.footprints[0].error_bytes(estimated)))


def estimated_bytes(footprints: Sequence[Footprint], batch_size: int) -> float:
    """Estimate device memory for any batch size, bytes: piecewise linear through the footprints, and never falling."""
    ascending = sorted(footprints, key=lambda footprint: footprint.batch_size)
    sizes = [footprint.batch_size for footprint in ascending]
    values = np.maximum.accumulate([float(footprint.device_bytes) for footprint in ascending]).tolist()
    if len(sizes) == 1:
        return float(values[0] * max(1.0, batch_size / sizes[0]))
    index = next((i for i, size in enumerate(sizes[1:-1]) if batch_size <= size), len(sizes) - 2)
    slope = (values[index + 1] - values[index]) / (sizes[index + 1] - sizes[index])
    return float(max(values[0] * min(1.0, batch_size / sizes[0]), values[index] + slope * (batch_size - sizes[index])))


def estimates(footprints: Sequence[Footprint], batch: Vector) -> Vector:
    """Estimate device memory for each batch size, bytes; 0 without footprints."""
    if not footprints:
        return np.zeros(len(batch))
    sizes, indices = np.unique(batch, return_inverse=True)
    return np.array([estimated_bytes(footprints, int(size)) for size in sizes])[indices]
