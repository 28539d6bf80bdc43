"""The messages between the driver and a trial's process, and the driver's end of its pipe."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from functools import reduce
from multiprocessing.connection import Connection

from pydantic import TypeAdapter

from autofit.records.description import Description, Footprint, GpuEstimate
from autofit.records.machine import Placement
from autofit.records.states import FailureKind, Phase
from autofit.records.trial import Measurement, TrialSpec

# the size of a pipe on Linux
_READ_BYTES = 64 * 1024


@dataclass(frozen=True)
class Task:
    """The task of a trial's process, and its devices."""

    spec: TrialSpec
    placement: Placement


@dataclass(frozen=True)
class Failure:
    """The error that a trial's process reports before it ends."""

    kind: FailureKind
    reason: str
    traceback: str | None = None
    device_peak_bytes: int | None = None
    # of a `UsageError`
    key: str | None = None


@dataclass(frozen=True)
class Message:
    """One line in a trial's pipe, which sets a single field, or the result of joining all lines so
    far with `then`.
    """

    phase: Phase | None = None
    description: Description | None = None
    # after the description, each as soon as it is estimated
    footprints: tuple[Footprint, ...] = ()
    # the last of a describing trial; "" if all footprints were sent
    estimate_problem: str | None = None
    # what the trial's process can read; the driver adds its own readings
    measurement: Measurement | None = None
    failure: Failure | None = None
    gpus: tuple[GpuEstimate, ...] = ()
    # host memory that the user's own run uses and this trial does not: counts as used
    reserved_bytes: int | None = None

    def then(self, later: Message) -> Message:
        """Join this message with a later one: keep the latest value of each field, and all
        estimates.
        """
        latest = {
            name: value for name, value in vars(later).items() if value is not None
        }
        latest["footprints"] = self.footprints + later.footprints
        latest["gpus"] = self.gpus + later.gpus
        return replace(self, **latest)

    def described(self, end_reason: str) -> Description | None:
        """Return the description with the part of the estimate that arrived; None if no description
        arrived.
        """
        if self.description is None:
            return None
        # the latest method that has footprints of at least two batch sizes counts, because a line
        # needs two points
        methods = [footprint.method for footprint in reversed(self.footprints)]
        method = max(methods, key=lambda name: min(methods.count(name), 2), default="")
        footprints = tuple(
            footprint for footprint in self.footprints if footprint.method == method
        )
        # if there is neither, the process ended before it sent them
        problem = self.estimate_problem
        if problem is None and not footprints:
            problem = end_reason
        return replace(
            self.description,
            footprints=() if problem else footprints,
            gpus=self.gpus,
            estimate_problem=problem or None,
        )


TASKS = TypeAdapter(Task)
MESSAGES = TypeAdapter(Message)


def encode(message: Message) -> bytes:
    """Encode a message as one line of JSON."""
    return MESSAGES.dump_json(message, fallback=repr) + b"\n"


@dataclass
class TrialPipe:
    """The driver's end of one trial's pipe."""

    pid: int
    receiving: Connection
    messages: Message = Message()
    is_open: bool = True
    _rest: bytes = b""

    def __post_init__(self) -> None:
        os.set_blocking(self.receiving.fileno(), False)

    def read(self) -> list[Phase]:
        """Read the messages that have arrived; return the phases among them, in order."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.receiving.fileno(), _READ_BYTES):
                self._rest += data
            self.is_open = False
        *lines, self._rest = self._rest.split(b"\n")
        arrived = [MESSAGES.validate_json(line) for line in lines]
        self.messages = reduce(Message.then, arrived, self.messages)
        return [message.phase for message in arrived if message.phase is not None]
