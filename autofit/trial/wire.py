"""The format of the process wall: the task of a trial's process, and the messages that it sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import TypeAdapter

from autofit.records.description import Description, Footprint
from autofit.records.machine import Placement
from autofit.records.states import FailureKind, Phase
from autofit.records.trial import TrialSpec


@dataclass(frozen=True)
class Task:
    """The task of a trial's process, and its devices."""

    spec: TrialSpec
    placement: Placement


@dataclass(frozen=True)
class Readings:
    """The readings of a measuring or confirming trial; the fields are those of `Measurement`."""

    samples_per_second: float
    spread: float | None
    step_seconds: float
    steps: int
    compute_samples_per_second: float | None = None
    input_samples_per_second: float | None = None
    queued_batches: int | None = None
    device_peak_bytes: int | None = None
    device_peak_bytes_by_phase: Mapping[Phase, int] = field(default_factory=dict)
    allocator_fallbacks: int = 0


@dataclass(frozen=True)
class Failure:
    """The error that a trial's process reports before it ends; `key` is that of a `UsageError`."""

    kind: FailureKind
    reason: str
    traceback: str | None = None
    device_peak_bytes: int | None = None
    key: str | None = None


@dataclass(frozen=True)
class Estimated:
    """No more footprints follow: all are there, or memory cannot be estimated because of the `problem`."""

    problem: str | None = None


@dataclass(frozen=True)
class Message:
    """One line of a trial's pipe, with one of the fields set.

    The footprints of a describing trial come after its description, each as soon as it is estimated, and `estimated` last.
    """

    phase: Phase | None = None
    description: Description | None = None
    footprint: Footprint | None = None
    estimated: Estimated | None = None
    readings: Readings | None = None
    failure: Failure | None = None


TASKS = TypeAdapter(Task)
MESSAGES = TypeAdapter(Message)


def encode(message: Message) -> bytes:
    """Encode a message as one line of JSON."""
    return MESSAGES.dump_json(message, fallback=repr) + b"\n"
