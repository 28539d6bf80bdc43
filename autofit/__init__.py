"""autofit: the fastest Keras `fit` configuration that fits in memory.

    import autofit

    result = autofit.tune(build_model, make_data)
    model.fit(make_data(**result.data_kwargs), **result.fit_kwargs)

The public names are loaded when they are first used: importing autofit loads neither Keras, TensorFlow, Optuna nor rich.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autofit.api.estimate import estimate, estimate_file
    from autofit.api.measure import measure
    from autofit.api.result import Result, SweepResult
    from autofit.api.sweep import sweep, sweep_file
    from autofit.api.tune import tune, tune_file
    from autofit.errors import (
        AutofitError,
        ConfigError,
        DeviceBusyError,
        NothingFitsError,
        NoTrialFinishedError,
        StorageError,
        TrialProcessError,
        UnsupportedInputError,
        UsageError,
        UserCodeError,
    )
    from autofit.records.result import Cell, Estimate
    from autofit.records.trial import FitConfig, Limits, Measurement, Outcome, Trial
    from autofit.search.sampler import FrontierSampler

_HOMES = {
    "autofit.api.estimate": ("estimate", "estimate_file"),
    "autofit.api.measure": ("measure",),
    "autofit.api.sweep": ("sweep", "sweep_file"),
    "autofit.api.tune": ("tune", "tune_file"),
    "autofit.errors": (
        "AutofitError",
        "ConfigError",
        "DeviceBusyError",
        "NoTrialFinishedError",
        "NothingFitsError",
        "StorageError",
        "TrialProcessError",
        "UnsupportedInputError",
        "UsageError",
        "UserCodeError",
    ),
    "autofit.records.result": ("Cell", "Estimate"),
    "autofit.api.result": ("Result", "SweepResult"),
    "autofit.search.sampler": ("FrontierSampler",),
    "autofit.records.trial": ("FitConfig", "Limits", "Measurement", "Outcome", "Trial"),
}

__all__ = [
    "AutofitError",
    "Cell",
    "ConfigError",
    "DeviceBusyError",
    "Estimate",
    "FitConfig",
    "FrontierSampler",
    "Limits",
    "Measurement",
    "NoTrialFinishedError",
    "NothingFitsError",
    "Outcome",
    "Result",
    "StorageError",
    "SweepResult",
    "Trial",
    "TrialProcessError",
    "UnsupportedInputError",
    "UsageError",
    "UserCodeError",
    "estimate",
    "estimate_file",
    "measure",
    "sweep",
    "sweep_file",
    "tune",
    "tune_file",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'autofit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
