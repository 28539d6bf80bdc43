"""The role, stage, phase and outcome of a trial."""

from __future__ import annotations

from enum import Enum


class Text(str, Enum):
    """An enum whose members are text: they print, compare and hash as it."""

    __str__ = str.__str__
    __hash__ = str.__hash__


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
    """The task of a trial's process."""

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
    """The activity of a trial's process; `label` is its text for people."""

    STARTING_SERVER = "starting_server"
    WAITING_FOR_GPU = "waiting_for_gpu"
    STARTING = "starting"
    LOADING = "loading"
    OPENING = "opening"
    FORKING = "forking"
    BUILDING = "building"
    SCANNING = "scanning"
    ESTIMATING = "estimating"
    FIRST_LONGEST = "first_longest"
    LONGEST_BATCH = "longest_batch"
    FIRST_STEP = "first_step"
    COMPUTE_ALONE = "compute_alone"
    INPUT_ALONE = "input_alone"
    FIRST_EPOCH = "first_epoch"
    FILLING_QUEUE = "filling_queue"
    QUEUE_FULL = "queue_full"
    TRAINING = "training"
    VALIDATION = "validation"

    @property
    def label(self) -> str:
        """The text for people, which also follows "while"."""
        return _LABELS[self]

    @property
    def counts(self) -> bool:
        """Whether its memory counts: the user's run has no phase in which the input pipeline runs alone."""
        return self is not Phase.INPUT_ALONE

    @property
    def is_first(self) -> bool:
        """Whether a step with new shapes runs in it, which compiles the step and chooses algorithms."""
        return self in (Phase.FIRST_STEP, Phase.FIRST_LONGEST)

    @property
    def trains(self) -> bool:
        """Whether later steps than the first run in it."""
        return self in (Phase.LONGEST_BATCH, Phase.COMPUTE_ALONE, Phase.FIRST_EPOCH, Phase.TRAINING)


_LABELS = {
    Phase.STARTING_SERVER: "starting the trial server",
    Phase.WAITING_FOR_GPU: "waiting for GPU memory that other processes hold",
    Phase.STARTING: "starting",
    Phase.LOADING: "loading your code",
    Phase.OPENING: "opening the data",
    Phase.FORKING: "testing forked workers",
    Phase.BUILDING: "building the model",
    Phase.SCANNING: "scanning the batches",
    Phase.ESTIMATING: "estimating memory",
    Phase.FIRST_LONGEST: "running the first step on the longest batch",
    Phase.LONGEST_BATCH: "training on the longest batch",
    Phase.FIRST_STEP: "running the first step",
    Phase.COMPUTE_ALONE: "timing the step alone",
    Phase.INPUT_ALONE: "timing the input pipeline alone",
    Phase.FIRST_EPOCH: "training the first epoch",
    Phase.FILLING_QUEUE: "filling the queue",
    Phase.QUEUE_FULL: "reading memory with a full queue",
    Phase.TRAINING: "training",
    Phase.VALIDATION: "validating",
}


class FailureKind(Text):
    """The kind of a failure that a trial's process reports itself."""

    USAGE = "usage"
    WORKER_DIED = "worker_died"
    DEVICE_OOM = "device_oom"
    HOST_OOM = "host_oom"
    ERROR = "error"
