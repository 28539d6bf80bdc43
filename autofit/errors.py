"""The errors that autofit raises on purpose; each class says when it is raised, and sets the exit code of the commands.

AutofitError
├── UsageError ── ConfigError
├── TuneError ─── UserCodeError, NothingFitsError, NoTrialFinishedError
└── StorageError, DeviceBusyError, DeviceLockedError, TrialProcessError
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autofit.records.units import format_bytes

if TYPE_CHECKING:
    from autofit.records.result import FailedTune


class AutofitError(Exception):
    """Base class of the errors that autofit raises on purpose; their messages are written for users.

    Example:
        >>> try:
        ...     autofit.tune(build_model, arrays, max_trials=0)
        ... except autofit.AutofitError as error:
        ...     print(error)
        max_trials: 0 is not allowed...
    """

    exit_code: ClassVar[int] = 1


class TuneError(AutofitError):
    """A tune ended without a result.

    Attributes:
        tune: the record of the tune with the trials that ran; None if the tune had not begun.

    Example:
        >>> autofit.TuneError("no trial ran").tune is None
        True
    """

    tune: FailedTune | None = None


class UsageError(AutofitError):
    """An argument is wrong, or two arguments contradict each other.

    Args:
        problem: what is wrong and what is allowed.
        key: dotted path of the wrong argument, shown before the problem; None for the call as a whole.

    Example:
        >>> print(autofit.UsageError("-1 is not allowed", key="space.workers"))
        space.workers: -1 is not allowed
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, problem: str, *, key: str | None = None) -> None:
        self.key, self.problem = key, problem
        super().__init__(f"{key}: {problem}" if key else problem)


class ConfigError(UsageError):
    """A YAML file cannot be read or contains something that is not allowed.

    Args:
        file: path of the file, as the user gave it.
        line: number of the wrong line, starting at 1; None if the error has no line, as for an unreadable file.
        column: number of the wrong column, starting at 1; None if the error has no column.
        key: dotted path of the wrong key; None for the file as a whole.
        problem: what is wrong and what is allowed.

    Example:
        >>> print(autofit.ConfigError("tune.yaml", 12, 1, "max_trails", "unknown key"))
        tune.yaml:12:1: max_trails: unknown key
    """

    def __init__(self, file: str, line: int | None, column: int | None, key: str | None, problem: str) -> None:
        place = ":".join(str(part) for part in (file, line, column) if part is not None)
        super().__init__(f"{place}: {key}: {problem}" if key else f"{place}: {problem}")
        self.file, self.line, self.column, self.key, self.problem = file, line, column, key, problem


class UserCodeError(TuneError):
    """The user's code raised an exception.

    Args:
        when: the activity that failed, such as "while building the model"; it completes "your code failed …".
        traceback: the traceback of the user's code, without autofit's own frames.

    Example:
        >>> print(autofit.UserCodeError("while building the model", "NameError: name 'Dense' is not defined"))
        your code failed while building the model:
        <BLANKLINE>
        NameError: name 'Dense' is not defined
    """

    def __init__(self, when: str, traceback: str) -> None:
        self.when, self.traceback = when, traceback
        super().__init__(f"your code failed {when}:\n\n{traceback.rstrip()}")


class DeviceBusyError(AutofitError):
    """The calling process holds memory of the GPU, so trials cannot use it.

    Args:
        device: the GPU's name.
        held_bytes: GPU memory that the process holds, in bytes; None if the driver does not report it.

    Example:
        >>> print(autofit.DeviceBusyError("GPU 0 (Tesla T4)", 13 * 2**30))
        this process holds 13.0 GiB of the memory of GPU 0 (Tesla T4), so trials cannot use that memory...
    """

    def __init__(self, device: str, held_bytes: int | None) -> None:
        self.device, self.held_bytes = device, held_bytes
        much = f"{format_bytes(held_bytes)} of " if held_bytes else ""
        super().__init__(
            f"this process holds {much}the memory of {device}, so trials cannot use that memory. Call autofit before "
            "this process uses the GPU (building a model uses it), or call autofit from a separate process. In a notebook, "
            "restart the kernel and call autofit first"
        )


class DeviceLockedError(AutofitError):
    """Another autofit is measuring on the device, and `wait` is false.

    Args:
        device: the device's name.
        holder: a description of the process that is measuring.

    Example:
        >>> print(autofit.DeviceLockedError("GPU 0 (Tesla T4)", "process 4711"))
        another autofit is measuring on the GPU 0 (Tesla T4) (process 4711)...
    """

    def __init__(self, device: str, holder: str) -> None:
        self.device, self.holder = device, holder
        super().__init__(
            f"another autofit is measuring on the {device} ({holder}); two at the same time would falsify each other's "
            "results. Wait for it (--wait, the default), end it, or choose another device"
        )


class NothingFitsError(TuneError):
    """Even the smallest batch needs more memory than the limit.

    Args:
        memory: the memory that is exceeded: "device" or "host".
        batch_size: the smallest batch size of the space; None if `batch_size` is not a knob of the data.
        needed_bytes: memory that this batch needs, in bytes.
        limit_bytes: the limit of a trial, in bytes.
        at_least: whether `needed_bytes` is a lower bound, because the batch also failed without the limit.
        estimated: whether `needed_bytes` is an estimate, and no trial ran.

    Example:
        >>> print(autofit.NothingFitsError("host", 8, 9 * 2**30, 6 * 2**30, at_least=False))
        nothing fits: a batch of 8 needs 9.00 GiB of host memory, but the limit is 6.00 GiB...
    """

    def __init__(
        self,
        memory: str,
        batch_size: int | None,
        needed_bytes: int,
        limit_bytes: int,
        *,
        at_least: bool,
        estimated: bool = False,
    ) -> None:
        self.memory, self.batch_size = memory, batch_size
        self.needed_bytes, self.limit_bytes, self.at_least = needed_bytes, limit_bytes, at_least
        what = f"a batch of {batch_size}" if batch_size is not None else "the workload"
        needs = f"more than {format_bytes(needed_bytes)}" if at_least else format_bytes(needed_bytes)
        smaller = ", allow a smaller batch_size in the space" if batch_size is not None and batch_size > 1 else ""
        by = " (estimated from the model; nothing was trained)" if estimated else ""
        super().__init__(
            f"nothing fits: {what} needs {needs} of {memory} memory{by}, but the limit is {format_bytes(limit_bytes)}. "
            f"Raise {memory}_memory{smaller}, or make the model or its input smaller."
        )


class NoTrialFinishedError(TuneError):
    """Trials ran, but none of them finished, and the reason was not memory.

    Example:
        >>> issubclass(autofit.NoTrialFinishedError, autofit.TuneError)
        True
    """


class TrialProcessError(AutofitError):
    """A trial process could not be started, or it ended unexpectedly.

    Example:
        >>> autofit.TrialProcessError("no process could be started").exit_code
        1
    """


class StorageError(AutofitError):
    """The storage of the trials cannot be opened, read or written.

    Example:
        >>> autofit.tune(build_model, arrays, storage="sqlite:////proc/trials.db", progress=False)
        Traceback (most recent call last):
        ...
        autofit.errors.StorageError: ...
    """

    exit_code: ClassVar[int] = 2
