"""Every error that autofit raises on purpose.

AutofitError                     exit code 1 unless noted otherwise
├── UsageError                   2: the call, the file or a place named there is wrong
│   ├── ConfigError              names file, line, column and key
│   └── UnsupportedInputError    the data is of a kind that is not supported
├── StorageError                 2: the storage cannot be opened, read or written
├── TuneError                    a tune ended without a result; carries what it ran
│   ├── UserCodeError            the user's own code raised; carries its traceback
│   ├── NothingFitsError         the smallest batch needs more than the limit
│   └── NoTrialFinishedError     trials ran, none of them finished
├── DeviceBusyError              the calling process holds the GPU itself
├── DeviceLockedError            another autofit measures on the device, and waiting was declined
├── TrialProcessError            a process for trials could not be started
├── ExecutorError                no host of a cluster can tune, or the cluster is gone
└── CancelledError               the program that runs the tune cancelled it
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autofit.records.units import format_bytes

if TYPE_CHECKING:
    from autofit.records.result import FailedTune


class AutofitError(Exception):
    """Base of every error that autofit raises on purpose; its text is meant to be shown as it is."""

    exit_code: ClassVar[int] = 1


class CancelledError(AutofitError):
    """The tune was cancelled by the program that runs it."""


class ExecutorError(AutofitError):
    """No host of a cluster can tune, or the cluster does not answer any more."""


class TuneError(AutofitError):
    """A tune ended without a result; `tune` is what it ran, None if it had not begun."""

    tune: FailedTune | None = None


class UsageError(AutofitError):
    """The arguments contradict each other or name something that does not exist.

    Args:
        problem: what is wrong and what is allowed.
        key: dotted path of the argument that is wrong, which then precedes the problem; None for the call as a whole.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, problem: str, *, key: str | None = None) -> None:
        self.key, self.problem = key, problem
        super().__init__(f"{key}: {problem}" if key else problem)


class ConfigError(UsageError):
    """A YAML file contains something that is not allowed.

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
    """The data, or what the data factory returned, is of a kind that autofit does not support."""


class UserCodeError(TuneError):
    """The user's own code raised an exception.

    Args:
        when: what was going on, as the rest of the sentence "your code failed …": "while building the model".
        traceback: the user's traceback, frames of autofit left out.
    """

    def __init__(self, when: str, traceback: str) -> None:
        self.when, self.traceback = when, traceback
        super().__init__(f"your code failed {when}:\n\n{traceback.rstrip()}")


class DeviceBusyError(AutofitError):
    """The calling process uses the GPU itself, so that trials cannot.

    Args:
        device: the GPU's name.
        held_bytes: what the process holds; None where the driver does not report it.
    """

    def __init__(self, device: str, held_bytes: int | None) -> None:
        self.device, self.held_bytes = device, held_bytes
        much = f"{format_bytes(held_bytes)} of " if held_bytes else ""
        super().__init__(
            f"this process itself holds {much}the memory of {device}, so that no trial can use it. Call autofit before "
            "anything that uses the GPU (building a model does), or from a separate process; in a notebook, restart the "
            "kernel and tune first"
        )


class DeviceLockedError(AutofitError):
    """Another autofit measures on the device, and the caller does not wait.

    Args:
        device: the device's name.
        holder: who measures there.
    """

    def __init__(self, device: str, holder: str) -> None:
        self.device, self.holder = device, holder
        super().__init__(
            f"another autofit measures on the {device} now ({holder}); two at once would falsify each other's results. "
            "Wait for it (--wait, the default), end it, or choose another device"
        )


class NothingFitsError(TuneError):
    """Not even the smallest batch fits the limits.

    Args:
        memory: "device" or "host".
        batch_size: the smallest batch size that the space allows; None when it is not a knob.
        needed_bytes: measured use of that batch.
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


class NoTrialFinishedError(TuneError):
    """Trials ran, but none finished, for another reason than memory."""


class TrialProcessError(AutofitError):
    """A process for trials could not be started, or is gone."""


class StorageError(AutofitError):
    """The storage of the trials cannot be opened, read or written."""

    exit_code: ClassVar[int] = 2
