"""Predict device and host memory of configs that have not run, with upper bounds.

Each memory has a linear model (`bayesian_linear.LinearModel`) that rises with every knob and is fitted again after each
trial; see `device_memory` and `host_memory`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autofit.records.trial import FitConfig, Trial
from autofit.search.config_arrays import ConfigArrays, Vector
from autofit.search.context import Observations, SearchContext
from autofit.search.surrogate.device_memory import DeviceModel
from autofit.search.surrogate.host_memory import HostModel

_BOUND_DEVIATIONS = 2.5  # standard deviations up to an upper bound: 99.4% of a normal distribution lie below it


class Prediction(NamedTuple):
    """Expected memory of a config, and the upper bound that it stays below with 99% probability, both in bytes."""

    expected_bytes: float
    upper_bytes: float


class MemorySurrogate:
    """Predicts device and host memory from the context, the trials of this tune, and those of similar tunes."""

    def __init__(self, context: SearchContext, trials: Sequence[Trial] = ()) -> None:
        self._limits, self._cores = context.limits, context.cores
        observations = Observations(trials, context.warm_start)
        self._device, self._host = DeviceModel(context, observations), HostModel(context, observations)

    def device(self, config: FitConfig) -> Prediction | None:
        """Predict the device memory of a config; None if there is neither an estimate nor an observation."""
        expected, upper = self._device.predict(ConfigArrays.of([config], self._cores), _BOUND_DEVIATIONS)
        return Prediction(float(expected[0]), float(upper[0])) if self._device.is_known else None

    def host(self, config: FitConfig) -> Prediction:
        """Predict the host memory of a config."""
        expected, upper = self._host.predict(ConfigArrays.of([config], self._cores), _BOUND_DEVIATIONS)
        return Prediction(float(expected[0]), float(upper[0]))

    def fits(self, config: FitConfig) -> bool:
        """Return whether the upper bounds of both memories are within the limits."""
        device, limit = self.device(config), self._limits.device_bytes
        within = device is None or limit is None or device.upper_bytes <= limit
        return within and self.host(config).upper_bytes <= self._limits.host_bytes

    def shares(self, configs: ConfigArrays, deviations: float) -> tuple[tuple[Vector, Vector], tuple[Vector, Vector]]:
        """Return the expected shares (device, host) of the memory limits, and their upper bounds.

        The bounds lie `deviations` standard deviations above. A share is 0 without a limit, or if nothing is known.
        """
        device, limit = self._device.predict(configs, deviations), self._limits.device_bytes
        expected, upper = self._host.predict(configs, deviations)
        if limit is None or not self._device.is_known:
            device, limit = (np.zeros(len(configs)), np.zeros(len(configs))), 1
        host_limit = self._limits.host_bytes if self._host.is_known else math.inf
        return (device[0] / limit, expected / host_limit), (device[1] / limit, upper / host_limit)
