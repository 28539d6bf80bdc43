"""What is asked of one tune, and its fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from autofit.records import Description, Device, FitConfig, Limits, Machine
from autofit.results import Usage
from autofit.space import KERAS_DEFAULTS, SearchSpace


@dataclass(frozen=True)
class Question:
    """What is asked: everything that decides a tune, but for the workload, which is behind the launcher.

    `limits_asked` are the limits as the user wrote them, since the bytes that a percentage gives change from day to day.
    `sample_count` is the length of an epoch where the data does not say it.
    """

    workload_fingerprint: str
    machine: Machine
    device: Device | None
    limits: Limits
    limits_asked: tuple[str, str]
    space: Mapping[str, Any] = field(default_factory=dict)
    baseline: Mapping[str, Any] = field(default_factory=dict)
    max_trials: int = 12
    max_seconds: float | None = None
    tolerance: float = 0.02
    risk: float = 0.97
    max_oom: int = 2
    max_trial_seconds: float = 180.0
    max_batch_size: int | None = None
    effective_batch_size: int | None = None
    sample_count: int | None = None
    storage: str | None = None
    fresh: bool = False
    usage: Usage = field(default_factory=Usage)

    @property
    def device_name(self) -> str:
        """What the device is called in reports."""
        return self.device.name if self.device else "CPU"

    def baseline_in(self, space: SearchSpace) -> FitConfig:
        """The config to compare with: Keras's defaults but for what the user says; knobs not searched are None."""
        wanted = replace(KERAS_DEFAULTS, **self.baseline)
        return space.canonical(FitConfig.of({knob: getattr(wanted, knob) for knob in space.knobs()}))

    def study_name(self, description: Description, space: SearchSpace) -> str:
        """The fingerprint of the question: model, input, device, limits, space and library versions."""
        parts = {
            "workload": self.workload_fingerprint,
            "model": description.fingerprint,
            "versions": dict(description.versions),
            "device": self.device.name if self.device else self.machine.processor,
            "cores": self.machine.cores,
            "memory": self.machine.memory_bytes,
            "limits": self.limits_asked,
            "space": space.knobs(),
            "effective_batch_size": self.effective_batch_size,
        }
        return "autofit-" + hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    def budget(self) -> dict[str, Any]:
        """What may change without making it another question, though it may have another answer."""
        names = ("max_trials", "max_seconds", "max_trial_seconds", "tolerance", "risk", "max_oom", "sample_count")
        return {"baseline": dict(self.baseline), **{name: getattr(self, name) for name in names}}
