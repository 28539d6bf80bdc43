"""What is asked of one tune, its fingerprint, and what makes another question similar."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from autofit.records.machine import Device, Machine
from autofit.records.result import Usage
from autofit.records.trial import FitConfig, Limits
from autofit.search.space import KERAS_DEFAULTS, SearchSpace
from autofit.storage import attributes

PREFIX = "autofit-"
"""With which the name of every question begins."""

_MEMORY_STEP_BYTES = 64 * 2**20  # another kernel leaves a few KiB more or less of the same memory


@dataclass(frozen=True)
class TuneRequest:
    """What is asked: everything that decides a tune, but for the workload, which is behind the launcher.

    `limits_asked` are the limits as the user wrote them, since the bytes that a percentage gives change from day to day.
    `sample_count` is the length of an epoch where the data does not say it. `settings` are versions and switches outside of
    the user's code.
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
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def device_name(self) -> str:
        """What the device is called in reports."""
        return self.device.name if self.device else "CPU"

    def baseline_in(self, space: SearchSpace) -> FitConfig:
        """The config to compare with: Keras's defaults but for what the user says; knobs not searched are None."""
        wanted = replace(KERAS_DEFAULTS, **self.baseline)
        return space.canonical(FitConfig.of({knob: getattr(wanted, knob) for knob in space.knobs()}))

    def fingerprint(self) -> str:
        """The name of the question: the same for one workload, device, limits, space and versions, and for no other."""
        parts = {
            **self._place(),
            "settings": dict(self.settings),
            "driver": self.device.driver if self.device else "",
            "limits": self.limits_asked,
            "space": {knob: repr(values) for knob, values in self.space.items()},
            "baseline": dict(self.baseline),
            "max_batch_size": self.max_batch_size,
            "effective_batch_size": self.effective_batch_size,
        }
        return PREFIX + _hash(parts)

    def warm_start_key(self) -> str:
        """What questions have in common from which one may learn for another: the workload and the hardware."""
        return _hash(self._place())

    def metadata(self, started_at: float) -> dict[str, Any]:
        """What people are told of the question beside its trials; `started_at` is in seconds since 1970 (UTC)."""
        data = self.usage.data + ("" if self.usage.data_form == "arrays" else "(…)")
        return {
            "title": f"{self.usage.model}, {data}",
            "started_at": started_at,
            "host": self.machine.host,
            "device": self.device_name,
            "limits": f"device {self.limits_asked[0]}, host {self.limits_asked[1]}",
        }

    def _place(self) -> dict[str, Any]:
        machine = self.machine
        hardware: list[Any] = [machine.cores, round(machine.memory_bytes / _MEMORY_STEP_BYTES), machine.processor]
        hardware += [self.device.name, self.device.total_bytes] if self.device else []
        return {"workload": self.workload_fingerprint, "hardware": hardware}

    def result_key(self) -> str:
        """Under which the answer is kept: the budget may change without making it another question, but has its answer."""
        names = ("max_trials", "max_seconds", "max_trial_seconds", "tolerance", "risk", "max_oom", "sample_count")
        return f"{attributes.RECORD}:{_hash({name: getattr(self, name) for name in names})}"


def _hash(parts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
