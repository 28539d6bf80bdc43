"""What a trial is for, what it is doing and how it ended."""

from __future__ import annotations

from enum import Enum


class Text(str, Enum):
    """An enum whose members are text and print as it."""

    __str__ = str.__str__


class Outcome(Text):
    """How a trial ended."""

    OK = "ok"
    DEVICE_OOM = "device_oom"
    HOST_OOM = "host_oom"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    ERROR = "error"

    @property
    def is_oom(self) -> bool:
        """Whether the trial ran out of memory, and so is evidence about the feasible frontier."""
        return self in (Outcome.DEVICE_OOM, Outcome.HOST_OOM)


class Role(Text):
    """What a trial's process does."""

    DESCRIBE = "describe"
    MEASURE = "measure"
    CONFIRM = "confirm"


class Stage(Text):
    """The part of a tune that a trial belongs to."""

    SEARCH = "search"
    FINALIST = "finalist"
    CHOSEN = "chosen"
    BASELINE = "baseline"


class Phase(Text):
    """What a trial's process is doing."""

    STARTING = "starting"
    LOADING = "loading your code"
    OPENING = "opening the data"
    FORKING = "trying forked workers"
    BUILDING = "building the model"
    SCANNING = "looking at the batches"
    ESTIMATING = "estimating memory"
    FIRST_LONGEST = "first step on the longest batch"
    LONGEST_BATCH = "longest batch"
    FIRST_STEP = "first step"
    COMPUTE_ALONE = "compute alone"
    INPUT_ALONE = "input pipeline alone"
    FIRST_EPOCH = "first epoch"
    FILLING_QUEUE = "filling the queue"
    QUEUE_FULL = "queue full"
    TRAINING = "training"
    VALIDATION = "validation"

    @property
    def counts(self) -> bool:
        """Whether its memory counts: the user's run has no phase in which the input pipeline runs alone."""
        return self is not Phase.INPUT_ALONE

    @property
    def is_first(self) -> bool:
        """Whether a step of a shape runs in it for the first time, which compiles it and chooses algorithms."""
        return self in (Phase.FIRST_STEP, Phase.FIRST_LONGEST)

    @property
    def trains(self) -> bool:
        """Whether steps run in it that are not the first."""
        return self in (Phase.LONGEST_BATCH, Phase.COMPUTE_ALONE, Phase.FIRST_EPOCH, Phase.TRAINING)


_PHRASES = {
    Phase.STARTING: "while it was starting",
    Phase.FIRST_LONGEST: "in the first step on the longest batch",
    Phase.LONGEST_BATCH: "while training on the longest batch",
    Phase.FIRST_STEP: "in the first step",
    Phase.COMPUTE_ALONE: "while the step ran alone",
    Phase.INPUT_ALONE: "while the input pipeline ran alone",
    Phase.FIRST_EPOCH: "in the first epoch",
    Phase.QUEUE_FULL: "while the queue was full",
    Phase.VALIDATION: "in the validation",
}


def phrase_of(phase: str | None) -> str:
    """Render a phase as part of a sentence: "while building the model", "in the first step"."""
    member = next((member for member in Phase if member == phase), Phase.STARTING)
    return _PHRASES.get(member, f"while {member}")


class FailureKind(Text):
    """What kind of failure a trial's process reports itself."""

    USAGE = "usage"
    WORKER_DIED = "worker_died"
    DEVICE_OOM = "device_oom"
    HOST_OOM = "host_oom"
    ERROR = "error"
