"""Entry point of the `autofit` command.

It handles Ctrl-C, SIGTERM and SIGHUP before the slow imports begin.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

# sent by a batch system, a container that stops, or a terminal that closes
_ENDING = (signal.SIGTERM, signal.SIGHUP)
# plus the number of a signal: the exit status that shells report for a program that it ended
_SIGNALLED = 128
# numbers of the signals received so far
_received: list[int] = []


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(
            stream, io.TextIOWrapper
        ):  # an ASCII terminal shows "?" for other characters
            stream.reconfigure(errors="replace")
    defaults = (signal.SIG_DFL, signal.default_int_handler)
    for number in (signal.SIGINT, *_ENDING):
        if (
            signal.getsignal(number) in defaults
        ):  # nohup makes us ignore SIGHUP: keep that
            signal.signal(number, _interrupt)
    try:
        from autofit.cli import app  # slow; Ctrl-C must work during this import

        with _reporting_full_output():
            app()
    except KeyboardInterrupt:
        print("\nInterrupted; nothing was run.", file=sys.stderr)
        raise SystemExit(_SIGNALLED + _received[0]) from None
    except SystemExit as ending:
        if (
            ending.code and _received
        ):  # a command, or typer, has already handled the signal
            raise SystemExit(_SIGNALLED + _received[0]) from None
        raise


@contextlib.contextmanager
def _reporting_full_output() -> Iterator[None]:
    """End with one line if standard output takes no more, as on a full disk."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if _can_be_written(sys.stdout.fileno()):
            raise
        # Python flushes once more when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # whoever closes a pipe wants no more
        if not isinstance(error, BrokenPipeError):
            problem = f"autofit: standard output cannot be written: {error.strerror}"
            print(problem, file=sys.stderr)
        raise SystemExit(1) from None


def _can_be_written(descriptor: int) -> bool:
    # ask the descriptor: a failed write has emptied the stream's buffer
    try:
        return os.write(descriptor, b"\n") == 1
    except OSError:
        return False


def _interrupt(number: int, _frame: FrameType | None) -> None:
    """End the program as Ctrl-C does.

    Later SIGTERM and SIGHUP are ignored, so that they do not disturb the end.
    """
    _received.append(number)
    for ending in _ENDING:
        signal.signal(ending, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
