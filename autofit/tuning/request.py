"""One request for a tune: everything that decides its result, and its keys in the storage."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from autofit.records.description import Description
from autofit.records.machine import Device, Machine, Placement
from autofit.records.result import CallSource, DataForm
from autofit.records.trial import FitConfig, Limits
from autofit.search.space import SearchSpace
from autofit.storage import attributes
from autofit.tuning.settings import TuneSettings
from autofit.workload.inputs.knobs import with_defaults

PREFIX = "autofit-"
"""Prefix of the names of all studies."""

_MEMORY_STEP_BYTES = 64 * 2**20  # the RAM that a kernel reports for the same machine differs by a few KiB
_BUDGET = ("max_trials", "max_seconds", "max_trial_seconds", "tolerance", "headroom", "max_oom", "sample_count")


@dataclass(frozen=True)
class TuneRequest:
    """Everything that decides a tune, except for the workload, which the launcher holds.

    `limits_asked` are the device and host limit as the user wrote them: the bytes of a percentage change from day to day.
    `environment` holds the versions and switches outside the user's code. With `fresh`, stored trials are deleted.
    """

    workload_fingerprint: str
    machine: Machine
    placement: Placement
    limits: Limits
    limits_asked: tuple[str, str]
    settings: TuneSettings = field(default_factory=TuneSettings)
    fresh: bool = False
    call_source: CallSource = field(default_factory=CallSource)
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def device(self) -> Device | None:
        """The accelerator, the first of several; None for the CPU."""
        return self.placement.device

    @property
    def asked_baseline(self) -> FitConfig:
        """The user's own values of the config to compare with."""
        return FitConfig.of(self.settings.baseline.values())

    def baseline(self, description: Description) -> FitConfig:
        """The config to compare with: the user's values, or else the data's own, or else Keras's defaults.

        A batch size that several devices cannot share evenly, with which nothing trains, is raised until they can.
        """
        baseline = with_defaults(self.asked_baseline, description.defaults)
        return replace(baseline, batch_size=self.placement.shared(baseline.batch_size or 1))

    def baseline_in(self, space: SearchSpace, description: Description) -> FitConfig:
        """The config to compare with; knobs that are not searched are None."""
        baseline = self.baseline(description)
        return space.canonical(FitConfig.of({knob: getattr(baseline, knob) for knob in space.knobs()}))

    def fingerprint(self) -> str:
        """The study's name: the same for one workload, device, limits, space and versions, and for no other."""
        parts = {  # a further key renames every stored study: add one only when its value is not the default
            **self._workload_and_hardware(),
            "settings": dict(self.environment),
            "driver": self.device.driver if self.device else "",
            "limits": self.limits_asked,
            "space": {knob: repr(values) for knob, values in self.settings.space.values().items()},
            "baseline": self.settings.baseline.values(),
            "max_batch_size": self.settings.max_batch_size,
            "effective_batch_size": self.settings.effective_batch_size,
        }
        return PREFIX + _hash(parts)

    def warm_start_key(self) -> str:
        """A key that similar requests share: those for the same workload on the same hardware."""
        return _hash(self._workload_and_hardware())

    def result_key(self) -> str:
        """Storage key of the result; one study stores one result per budget, fewest updates and expected training.

        The trials of a study hold for any of them. Before there were these settings, results were those of 1 and None.
        """
        parts = {name: getattr(self.settings, name) for name in _BUDGET}
        if self.settings.min_updates > 1:
            parts["min_updates"] = self.settings.min_updates
        if self.settings.expected_training_seconds is not None:
            parts["expected_training_seconds"] = self.settings.expected_training_seconds
        return f"{attributes.RECORD}:{_hash(parts)}"

    def metadata(self, started_at: float) -> dict[str, Any]:
        """Attributes of the study for people who look at it; `started_at` is in seconds since 1970 (UTC)."""
        data = self.call_source.data + ("" if self.call_source.data_form is DataForm.ARRAYS else "(…)")
        return {
            "title": f"{self.call_source.model}, {data}",
            "started_at": started_at,
            "host": self.machine.host,
            "device": self.placement.name,
            "limits": f"device {self.limits_asked[0]}, host {self.limits_asked[1]}",
        }

    def _workload_and_hardware(self) -> dict[str, Any]:
        machine = self.machine
        hardware: list[Any] = [machine.cores, round(machine.memory_bytes / _MEMORY_STEP_BYTES), machine.processor]
        for gpu in self.placement.gpus:
            hardware += [gpu.name, gpu.total_bytes]
        if not self.placement.gpus and self.placement.count > 1:
            hardware.append(f"{self.placement.count} logical devices")
        return {"workload": self.workload_fingerprint, "hardware": hardware}


def _hash(parts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
