"""A request for a tune: everything that determines its result, its keys in the storage, and its
stored result.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from autofit.records import DEFAULT_BACKEND
from autofit.records.description import Description
from autofit.records.events import Emit
from autofit.records.knobs import FitConfig
from autofit.records.machine import Machine, Placement
from autofit.records.result import CallSource, TuneRecord
from autofit.records.trial import Limits
from autofit.storage import result_files
from autofit.tuning.settings import TuneSettings
from autofit.workload.fit_options import FIT
from autofit.workload.inputs.knobs import with_defaults
from autofit.workload.script import Script

# settings and options that change the result, but not the trials
_BUDGET = ("batch_size", "max_trials", "max_seconds")
_OPTIONS = ("max_trial_seconds", "tolerance", "min_updates")


@dataclass(frozen=True)
class TuneRequest:
    """Everything that determines the result of a tune, except for the workload, which the launcher
    holds.
    """

    workload_fingerprint: str
    machine: Machine
    placement: Placement
    limits: Limits
    settings: TuneSettings = field(default_factory=TuneSettings)
    call_source: CallSource = field(default_factory=CallSource)
    # versions and switches outside the user's code
    environment: Mapping[str, str] = field(default_factory=dict)
    # that is tuned in place of functions
    script: Script | None = None
    # identifies the sampler in the settings, before it draws
    sampler_key: str = ""
    # of `limits`, those that a result lowered which failed in the user's training
    lowered: Mapping[str, int] = field(default_factory=dict)

    @property
    def asked_baseline(self) -> FitConfig:
        """The values of the baseline that the user gave; the other knobs are None."""
        return FitConfig.of(self.settings.baseline.values())

    @property
    def changes_learning(self) -> bool:
        """Whether another batch size changes the updates: not in inference, nor if gradients are
        accumulated.
        """
        return (
            self.call_source.call == FIT and self.settings.effective_batch_size is None
        )

    def baseline(self, description: Description) -> FitConfig:
        """Return the baseline. For each knob it has the user's value, the data's own value or
        Keras's default.
        """
        # a batch size that several devices cannot share evenly does not train; it is rounded up to
        # one that they can share
        baseline = with_defaults(self.asked_baseline, description.defaults)
        return replace(
            baseline, batch_size=self.placement.shared(baseline.batch_size or 1)
        )

    def under(self, failed_bytes: Mapping[str, int]) -> TuneRequest:
        """Return the request under limits below results that failed in the user's training.

        `failed_bytes` are such limits by their names, as `study.mark_failed` stores them.
        """
        limits = self.limits
        for name, lower in failed_bytes.items():
            present = getattr(limits, name)
            limits = replace(limits, **{name: min(present or lower, lower)})
        return replace(self, limits=limits, lowered=failed_bytes)

    def fingerprint(self) -> str:
        """Return the name of the study: of workload, device, limits, space and versions."""
        settings = self.settings
        device = self.placement.device
        parts = {
            **self._workload_and_hardware(),
            "settings": dict(self.environment),
            "driver": device.driver if device else "",
            # as written: a percentage is the same request if its bytes change
            "limits": (str(settings.device_memory), str(settings.host_memory)),
            "space": {
                knob: repr(values) for knob, values in settings.space.values().items()
            },
            "baseline": settings.baseline.values(),
            "effective_batch_size": settings.effective_batch_size,
        }
        return f"autofit-{_hash(parts)}"

    def warm_start_key(self, description: Description) -> str:
        """Return the key that tunes of the same workload under other limits and versions share."""
        of_model = f"{description.parameter_count} {description.sample_bytes}"
        key = f"{_hash(self._workload_and_hardware())} {of_model}"
        # rates on one backend say nothing about another
        if description.backend != DEFAULT_BACKEND:
            key += f" {description.backend}"
        return key

    def result_key(self) -> str:
        # requests that differ only in these settings and the sampler share a study with its trials,
        # but each has a result
        parts = {name: getattr(self.settings, name) for name in _BUDGET}
        parts |= {name: getattr(self.settings.options, name) for name in _OPTIONS}
        if self.sampler_key:
            parts["sampler"] = self.sampler_key
        return f"{result_files.RECORD}:{_hash(parts)}"

    def labels(self) -> dict[str, str]:
        """Return the attributes of the study that Optuna's tools show."""
        source = self.call_source
        title = f"{source.model}, {source.data}"
        if source.call != FIT:
            title = f"{source.call} of {title}"
        if source.data_form != "arrays":
            title += "(…)"
        return {
            "title": title,
            "device": f"{self.placement.name} of {self.machine.host}",
            "limits": f"device {self.settings.device_memory}, host {self.settings.host_memory}",
        }

    def _workload_and_hardware(self) -> dict[str, Any]:
        # without the RAM, which grows on some virtual machines: limits say what of it counts, and
        # are compared when a stored trial or result is used
        placement = self.placement
        hardware: list[str | int] = [self.machine.cores, self.machine.processor]
        for gpu in placement.gpus:
            hardware += [gpu.name, gpu.total_bytes]
        if not placement.gpus and placement.count > 1:
            hardware.append(f"{placement.count} logical devices")
        return {"workload": self.workload_fingerprint, "hardware": hardware}


def _hash(parts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def compiled_folder(request: TuneRequest) -> Path | None:
    """Return the folder for what trials compile, beside the file of the study; None without one."""
    from autofit.storage import connection  # imported late: it imports Optuna

    file = connection.file_of(request.settings.storage)
    if file is None:
        return None
    return file.absolute().with_name(f"{file.name}.compiled") / request.fingerprint()


def reuse(request: TuneRequest, emit: Emit) -> TuneRecord | None:
    """Return a request's stored result, or None if there is none that is valid under the present
    limits.
    """
    if request.settings.options.fresh:
        return None
    from autofit.storage import connection  # imported late: it imports Optuna

    attributes = (
        connection.attributes_of(request.settings.storage, request.fingerprint()) or {}
    )
    limits = request.under(attributes.get(result_files.FAILED) or {}).limits
    try:
        stored = result_files.decode(attributes.get(request.result_key()))
    except ValidationError:
        return None
    if not isinstance(stored, TuneRecord) or not result_files.holds(stored, limits):
        return None
    # the key of a script is the same whatever values its knobs have
    if stored.digests and request.call_source.digest not in stored.digests:
        return None
    when = datetime.fromtimestamp(stored.started_at)
    where = stored.machine.host or "this host"
    again = "to tune again, use --fresh (in Python, options={'fresh': True})"
    emit(
        f"using the stored result of the tune at {when:%Y-%m-%d %H:%M} on {where}; {again}"
    )
    return replace(stored, call_source=request.call_source)
