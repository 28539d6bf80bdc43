"""The role, stage, phase and outcome of a trial."""

from __future__ import annotations

from enum import Enum


class Text(str, Enum):
    """An enum whose members are strings: they print, compare and hash like their values."""

    __str__ = str.__str__


class Outcome(Text):
    """How a trial ended.

    Example:
        >>> [outcome.value for outcome in autofit.Outcome if outcome.is_oom]
        ['device_oom', 'host_oom']
    """

    OK = "ok"
    DEVICE_OOM = "device_oom"
    HOST_OOM = "host_oom"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    ERROR = "error"

    @property
    def is_oom(self) -> bool:
        return self in (Outcome.DEVICE_OOM, Outcome.HOST_OOM)


class Role(Text):
    """The task of a trial's process."""

    DESCRIBE = "describe"
    MEASURE = "measure"
    CONFIRM = "confirm"


class Stage(Text):
    """The part of a tune that a trial belongs to.

    Those of the search are measured (`Role.MEASURE`); all others are longer (`Role.CONFIRM`).
    """

    SEARCH = "search"  # of a new config
    AGAIN = "again"  # of one that has run, to know it better
    CHOSEN = "chosen"  # a run of what is to be delivered
    BESIDE = "beside"  # one of the runs that compare the answers with the baseline


class Phase(Text):
    """The activity of a trial's process. `label` is its text in messages; it also fits after the
    word "while".

    The memory of a phase `counts`, unless the user's run never has it: the input pipeline alone,
    data that is opened again. A phase that `is_first` trains the first step with new shapes, which
    compiles the step and chooses algorithms; later steps run in one that `trains`. The rate of a
    phase that `is_timed` is that of the trial.
    """

    label: str
    counts: bool
    is_first: bool
    trains: bool
    is_timed: bool

    def __new__(cls, value: str, label: str, kind: str = "") -> Phase:
        phase = str.__new__(cls, value)
        phase._value_ = value
        phase.label = label
        phase.counts = kind != "alone"
        phase.is_first = kind == "first"
        phase.is_timed = kind == "timed"
        phase.trains = kind in ("trains", "timed")
        return phase

    STARTING_SERVER = "starting_server", "starting the trial server"
    WAITING_FOR_GPU = (
        "waiting_for_gpu",
        "waiting for GPU memory that other processes hold",
    )
    STARTING = "starting", "starting"
    LOADING = "loading", "loading your code"
    OPENING = "opening", "opening the data"
    OPENING_AGAIN = "opening_again", "opening the data with another batch size", "alone"
    FORKING = "forking", "testing forked workers"
    BUILDING = "building", "building the model"
    SCANNING = "scanning", "scanning the batches"
    ESTIMATING = "estimating", "estimating memory"
    FIRST_LONGEST = (
        "first_longest",
        "running the first step on the longest batch",
        "first",
    )
    LONGEST_BATCH = "longest_batch", "running the longest batch", "trains"
    FIRST_STEP = "first_step", "running the first step", "first"
    COMPUTE_ALONE = "compute_alone", "timing the step alone", "trains"
    INPUT_ALONE = "input_alone", "timing the input pipeline alone", "alone"
    FIRST_EPOCH = "first_epoch", "training the first epoch", "trains"
    EPOCHS = "epochs", "timing epochs", "timed"
    FILLING_QUEUE = "filling_queue", "filling the queue"
    QUEUE_FULL = "queue_full", "reading memory with a full queue"
    TRAINING = "training", "training", "timed"
    INFERENCE = "inference", "running inference", "timed"
    FIRST_VALIDATION = "first_validation", "running the first validation step"
    VALIDATION = "validation", "validating"


class FailureKind(Text):
    """The kind of failure that a trial's process itself reports."""

    USAGE = "usage"
    WORKER_DIED = "worker_died"
    DEVICE_OOM = "device_oom"
    HOST_OOM = "host_oom"
    ERROR = "error"
