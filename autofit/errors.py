"""The errors that autofit raises on purpose.

Each class says when it is raised, and sets the exit code of the commands.

AutofitError
├── UsageError ── ConfigError
├── TuneError ─── UserCodeError, NothingFitsError, NoTrialFinishedError
└── StorageError, DeviceBusyError, TrialProcessError
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from autofit.records.units import format_bytes

if TYPE_CHECKING:
    from autofit.records.result import FailedTune

_MOST_LISTED = 10  # errors in one message; whoever has more corrects these first


class AutofitError(Exception):
    """Base class of the errors that autofit raises on purpose.

    Their messages are written for users.
    """

    exit_code: ClassVar[int] = 1


class TuneError(AutofitError):
    """A tune ended without a result.

    `tune` is its record with the trials that ran, None if it had not begun.
    """

    tune: FailedTune | None = None


@dataclass(frozen=True)
class Problem:
    """What is wrong with an argument, and what to do.

    `key` is the dotted path of the argument; None for the whole call.
    """

    text: str
    key: str | None = None

    def __str__(self) -> str:
        return f"{self.key}: {self.text}" if self.key else self.text


@dataclass(frozen=True)
class PlacedProblem(Problem):
    """A problem and its place in a file.

    Line and column start at 1; they are None for a file without places, as one that is unreadable.
    """

    file: str = ""
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        place = (
            str(part)
            for part in (self.file, self.line, self.column)
            if part is not None
        )
        return f"{':'.join(place)}: {super().__str__()}"


class UsageError(AutofitError):
    """An argument is wrong, or two arguments contradict each other.

    `problem` says what is wrong and what is allowed, `key` is the dotted path of the argument; None
    for the whole call. They are those of the first of the `problems` of a call or a file, all of
    which the message lists.
    """

    exit_code: ClassVar[int] = 2

    def __init__(
        self, problem: str | Sequence[Problem], *, key: str | None = None
    ) -> None:
        problems = [Problem(problem, key)] if isinstance(problem, str) else problem
        self.problems = tuple(problems)
        self.key = self.problems[0].key
        self.problem = self.problems[0].text
        lines = [str(each) for each in self.problems]
        if len(lines) > 1:
            hidden = len(lines) - _MOST_LISTED
            listed = [f"{len(lines)} errors:", *lines[:_MOST_LISTED]]
            lines = [*listed, f"and {hidden} more"] if hidden > 0 else listed
        super().__init__("\n  ".join(lines))

    @property
    def others(self) -> tuple[UsageError, ...]:
        """The further problems of the same call or file, each as an error of its own."""
        return tuple(type(self)([each]) for each in self.problems[1:])


class ConfigError(UsageError):
    """A YAML file cannot be read or contains something that is not allowed.

    `file` is its path as the user gave it. `line` and `column` start at 1; they are None if the
    error has no place, as for an unreadable file. `key` is the dotted path of the wrong key; None
    for the file as a whole.
    """

    def __init__(self, problems: Sequence[PlacedProblem]) -> None:
        super().__init__(problems)
        self.file = problems[0].file
        self.line = problems[0].line
        self.column = problems[0].column


class UserCodeError(TuneError):
    """The user's code raised an exception.

    `traceback` is its own, without the frames of autofit.
    """

    def __init__(self, when: str, traceback: str) -> None:
        self.traceback = traceback
        super().__init__(f"your code failed {when}:\n\n{traceback.rstrip()}")


class DeviceBusyError(AutofitError):
    """The device is in use: this process holds memory of the GPU, or another autofit is measuring
    and `wait` is false.
    """


class NothingFitsError(TuneError):
    """Even the smallest batch needs more memory than the limit.

    `memory` is the memory that is exceeded, "device" or "host". `batch_size` is the smallest of the
    space; None if it is not a knob of the data. `needed_bytes` is a lower bound of what this batch
    needs; an estimate if no trial ran (`estimated`). `reason` is why memory ran out under the
    limit; "" if the limit was exceeded. `is_lowered` says that the limit is that of a result which
    failed in the user's training. `stacked_steps` are those of a call that holds all of its batches
    at once.
    """

    def __init__(
        self,
        memory: str,
        batch_size: int | None,
        needed_bytes: int,
        limit_bytes: int,
        *,
        estimated: bool = False,
        reason: str = "",
        is_lowered: bool = False,
        stacked_steps: int = 1,
    ) -> None:
        self.memory = memory
        self.batch_size = batch_size
        self.needed_bytes = needed_bytes
        self.limit_bytes = limit_bytes
        what = f"a batch of {batch_size}" if batch_size is not None else "the workload"
        smaller = ""
        if batch_size is not None and batch_size > 1:
            smaller = ", allow a smaller batch_size in the space"
        if stacked_steps > 1:
            what += f", with {stacked_steps} steps in a call, which holds their batches at once,"
            or_batch = " or a smaller batch_size" if smaller else ""
            smaller = f", allow fewer steps_per_execution{or_batch} in the space"
        needed = format_bytes(needed_bytes)
        limit = format_bytes(limit_bytes)
        by = " (estimated from the model; nothing was trained)" if estimated else ""
        needs = (
            f"needs more than {needed} of {memory} memory{by}, but the limit is {limit}"
        )
        remedy = f"Raise {memory}_memory"
        if reason:
            needs = f"ran out of {memory} memory under the limit of {limit} ({reason})"
            remedy = f"Free some {memory} memory"
        if is_lowered:
            failed = f"a result that ran out of {memory} memory in your training (show --failed)"
            lift = "To lift it, tune with --fresh (in Python, options={'fresh': True})"
            remedy = f"The limit is that of {failed}. {lift}"
        super().__init__(
            f"nothing fits: {what} {needs}. {remedy}{smaller}, or make the model or its input "
            "smaller."
        )


class NoTrialFinishedError(TuneError):
    """Trials ran, but none of them finished, and the reason was not memory."""


class TrialProcessError(AutofitError):
    """A trial process could not be started, or it ended unexpectedly."""


class StorageError(AutofitError):
    """The storage of the trials cannot be opened, read or written."""

    exit_code: ClassVar[int] = 2
