"""Entry point of the `autofit` command: handles Ctrl-C, SIGTERM and SIGHUP before the slow imports begin."""

from __future__ import annotations

import io
import os
import signal
import sys
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGHUP)  # of a batch system, a container that stops, a terminal that closes
_received: list[int] = []  # signals


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal in ASCII shows what it can
            stream.reconfigure(errors="replace")
    for number in (signal.SIGINT, *_ENDING):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):  # nohup ignores SIGHUP
            signal.signal(number, _interrupt)
    try:
        from autofit.cli import app  # slow: Ctrl-C must work during it

        app()
    except KeyboardInterrupt:
        print("\nInterrupted; nothing was run.", file=sys.stderr)
        raise SystemExit(_status_of(_received[0])) from None
    except SystemExit as ending:
        if ending.code and _received:  # whoever noticed the signal first: a command, typer, or we
            raise SystemExit(_status_of(_received[0])) from None
        raise
    except OSError:
        _end_if_output_is_full()
        raise


def _interrupt(number: int, _frame: FrameType | None) -> None:
    """End the program as Ctrl-C does; other signals than Ctrl-C do not disturb it any more."""
    _received.append(number)
    for ending in _ENDING:
        signal.signal(ending, signal.SIG_IGN)
    raise KeyboardInterrupt


def _status_of(number: int) -> int:
    """The exit status of a program that a signal ended, as shells have it."""
    return 128 + number


def _end_if_output_is_full() -> None:
    """End with a message where standard output takes nothing more, as on a full disk; trials are stored elsewhere."""
    try:
        sys.stdout.write("\n")  # what could not be written may be dropped already
        sys.stdout.flush()
    except OSError as error:
        print(f"autofit: the output cannot be written: {error.strerror}; finished trials are kept", file=sys.stderr)
        os._exit(1)  # the interpreter would try to flush it once more


if __name__ == "__main__":
    main()
