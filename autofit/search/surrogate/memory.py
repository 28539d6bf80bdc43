"""Predict device and host memory of configs that have not run, with upper bounds.

Each memory has a linear model (`bayesian_linear.LinearModel`) that rises with every knob and is fitted again after each
trial; see `device_memory` and `host_memory`. A step in other modes (`config_arrays.MODES`) has a model of its own once a
trial has run in them; before that, its memory is predicted from the baseline's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np

from autofit.records.states import Outcome
from autofit.records.trial import FitConfig, Trial
from autofit.search.config_arrays import ConfigArrays, Vector, modes_of
from autofit.search.context import Observations, SearchContext
from autofit.search.surrogate.device_memory import DeviceModel
from autofit.search.surrogate.host_memory import HostModel

_BOUND_DEVIATIONS = 2.5  # standard deviations up to an upper bound: 99.4% of a normal distribution lie below it
_ERROR_IN_OTHER_MODES = 0.5  # relative, of the baseline's estimate (assumed)


class _Ratio(NamedTuple):
    """The memory of a step in a mode relative to the step without it: lowest, expected and highest."""

    low: float
    expected: float
    high: float


# in the order of `MODES` (assumed: a half-precision step keeps its weights in float32, and rematerialization frees nothing
# if one layer has the peak)
_RATIOS = (
    _Ratio(0.75, 1.0, 1.3),
    _Ratio(0.5, 0.7, 1.1),
    _Ratio(0.5, 0.7, 1.1),
    _Ratio(0.2, 0.6, 1.05),
    _Ratio(0.3, 0.85, 1.05),
)


class _Model(Protocol):
    is_known: bool

    def predict(self, configs: ConfigArrays, deviations: float) -> tuple[Vector, Vector]: ...


class Prediction(NamedTuple):
    """Expected memory of a config, and the upper bound that it stays below with 99% probability, both in bytes."""

    expected_bytes: float
    upper_bytes: float


class MemorySurrogate:
    """Predicts device and host memory from the context, the trials of this tune, and those of similar tunes."""

    def __init__(self, context: SearchContext, trials: Sequence[Trial] = ()) -> None:
        self._limits, self._cores = context.limits, context.cores
        self._device = _ByModes(DeviceModel, context, trials)
        # only on a CPU does the step take host memory
        self._host = _ByModes(HostModel, context, trials, is_alike=not context.on_cpu)

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


class _ByModes:
    """A model of one memory for each set of modes with a finished trial, and for the baseline's.

    If `is_alike`, all modes take the same memory.
    """

    def __init__(
        self,
        make: Callable[[SearchContext, Observations], _Model],
        context: SearchContext,
        trials: Sequence[Trial],
        *,
        is_alike: bool = False,
    ) -> None:
        self._baseline, self._is_alike = modes_of(context.baseline), is_alike
        everything = (trials, context.warm_start)
        ran = {modes_of(t.config) for part in everything for t in part if t.measurement.outcome is Outcome.OK}
        self._models = dict[tuple[bool, ...], _Model]()
        for modes in {self._baseline} if is_alike else {self._baseline, *ran}:
            observed = [[t for t in part if is_alike or modes_of(t.config) == modes] for part in everything]
            self._models[modes] = make(context if modes == self._baseline else _inexact(context), Observations(*observed))

    @property
    def is_known(self) -> bool:
        """Whether anything is known of the memory in the baseline's modes."""
        return self._models[self._baseline].is_known

    def predict(self, configs: ConfigArrays, deviations: float) -> tuple[Vector, Vector]:
        """Predict expected values and upper bounds in bytes; the bounds lie `deviations` standard deviations above."""
        expected, upper = self._models[self._baseline].predict(configs, deviations)
        if self._is_alike or len(configs) == 0:
            return expected, upper
        for modes in configs.distinct_modes - {self._baseline}:
            which = (configs.modes == np.array(modes)).all(1)
            if modes in self._models:
                expected[which], upper[which] = self._models[modes].predict(configs.at(which), deviations)
            else:
                ratio = _ratio_of(modes, self._baseline)
                expected[which], upper[which] = expected[which] * ratio.expected, upper[which] * ratio.high
        return expected, upper


def _inexact(context: SearchContext) -> SearchContext:
    """Return a context whose estimates are not of the modes that have run, so that their level says little."""
    footprints = context.description.footprints
    wide = tuple(replace(each, relative_error=max(each.relative_error, _ERROR_IN_OTHER_MODES)) for each in footprints)
    return replace(context, description=replace(context.description, footprints=wide))


def _ratio_of(modes: tuple[bool, ...], baseline: tuple[bool, ...]) -> _Ratio:
    """Return the memory of a step in some modes relative to that in the baseline's."""
    with_, without = (
        [ratio for ratio, has, had in zip(_RATIOS, *pair, strict=True) if has and not had]
        for pair in ((modes, baseline), (baseline, modes))
    )
    return _Ratio(
        math.prod(each.low for each in with_) / math.prod(each.high for each in without),
        math.prod(each.expected for each in with_) / math.prod(each.expected for each in without),
        math.prod(each.high for each in with_) / math.prod(each.low for each in without),
    )
