"""Every error that autofit raises on purpose.

AutofitError                     exit code 1 unless said otherwise
├── UsageError                   2: the call, the file or a place named there is wrong
│   ├── ConfigError              names file, line, column and key
│   ├── UnsupportedInputError    the data is of a kind that is not taken
│   └── StorageError             trials cannot be stored or read there
├── UserCodeError                the user's own code raised; carries its traceback
├── DeviceBusyError              the calling process holds the GPU itself
├── NothingFitsError             the smallest batch needs more than the limit
├── NoTrialFinishedError         trials ran, none of them to its end
└── TrialProcessError            a process for trials could not be had
"""

from __future__ import annotations

from typing import ClassVar

from autofit.records.units import format_bytes


class AutofitError(Exception):
    """Base of every error that autofit raises on purpose; its text is meant to be shown as it is."""

    exit_code: ClassVar[int] = 1

    seen: object = None
    """What a tune had seen when it raised this (`results.FailedTune`); None where none had begun."""


class UsageError(AutofitError):
    """The arguments contradict themselves or name something that does not exist.

    Args:
        problem: what is wrong and what is allowed.
        key: dotted path of the argument that is wrong, which then precedes the problem; None for the call as a whole.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, problem: str, *, key: str | None = None) -> None:
        self.key, self.problem = key, problem
        super().__init__(f"{key}: {problem}" if key else problem)


class ConfigError(UsageError):
    """A YAML file says something that autofit cannot take.

    Args:
        file: path of the file, as the user named it.
        line: line number, from 1; None where no line can be named (an unreadable file).
        column: column number, from 1; None where none can be named.
        key: dotted path of the key; None where the file as a whole is meant.
        problem: what is wrong and what is allowed.
    """

    def __init__(self, file: str, line: int | None, column: int | None, key: str | None, problem: str) -> None:
        place = ":".join(str(part) for part in (file, line, column) if part is not None)
        super().__init__(f"{place}: {key}: {problem}" if key else f"{place}: {problem}")
        self.file, self.line, self.column, self.key, self.problem = file, line, column, key, problem


class UnsupportedInputError(UsageError):
    """The data, or what the data factory returned, is of a kind that autofit does not take."""


class UserCodeError(AutofitError):
    """The user's own code raised an exception.

    Args:
        doing: what the trial was doing, for example "building the model".
        traceback: the user's traceback, frames of autofit left out.
    """

    def __init__(self, doing: str, traceback: str) -> None:
        self.doing, self.traceback = doing, traceback
        when = f"while {doing}" if doing.partition(" ")[0].endswith("ing") else f"in the phase: {doing}"
        super().__init__(f"your code failed {when}:\n\n{traceback.rstrip()}")


class DeviceBusyError(AutofitError):
    """The process that calls autofit has the GPU in its own hands, so that trials cannot have it.

    Args:
        device: the GPU's name.
        held_bytes: what the process holds; None where the driver does not tell.
    """

    def __init__(self, device: str, held_bytes: int | None) -> None:
        self.device, self.held_bytes = device, held_bytes
        much = f"{format_bytes(held_bytes)} of " if held_bytes else ""
        super().__init__(
            f"this process itself holds {much}the memory of {device}, so that no trial can have it. Call autofit before "
            "anything that uses the GPU (building a model does), or from a process of its own; in a notebook, restart the "
            "kernel and tune first"
        )


class NothingFitsError(AutofitError):
    """Not even the smallest batch fits.

    Args:
        memory: "device" or "host".
        batch_size: the smallest batch size that the space allows; None when it is not a knob.
        needed_bytes: what that batch was seen to use.
        limit_bytes: what a trial may use.
        at_least: True when `needed_bytes` is a lower bound (it failed with the limit lifted, too).
        estimated: True when nothing was run.
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
            f"nothing fits: {what} needs {needs} of {memory} memory{by}, the limit is {format_bytes(limit_bytes)}. "
            f"Raise {memory}_memory{smaller}, or make the model or its input smaller."
        )


class NoTrialFinishedError(AutofitError):
    """Trials ran, but none reached its end, for another reason than memory."""


class TrialProcessError(AutofitError):
    """A process for trials could not be started, or was lost."""


class StorageError(UsageError):
    """The storage of the trials cannot be opened, read or written."""
