"""Entry point of the `autofit` command: handles Ctrl-C, SIGTERM and SIGHUP before the slow imports begin."""

from __future__ import annotations

import io
import os
import signal
import sys
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGHUP)  # of a batch system, a container that stops, a terminal that closes


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal in ASCII shows what it can
            stream.reconfigure(errors="replace")
    for number in _ENDING:
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, _interrupt)
    try:
        from autofit.cli import app  # slow: Ctrl-C must work during it

        app()
    except KeyboardInterrupt as interrupt:
        print("\nInterrupted; nothing was run.", file=sys.stderr)
        raise SystemExit(128 + (interrupt.args or (signal.SIGINT,))[0]) from None
    except OSError:
        _end_if_output_is_full()
        raise


def _interrupt(number: int, _frame: FrameType | None) -> None:
    """End as Ctrl-C does, with the signal's status; later signals do not disturb it."""
    for ending in _ENDING:
        signal.signal(ending, signal.SIG_IGN)
    raise KeyboardInterrupt(number)


def _end_if_output_is_full() -> None:
    """End with a message where standard output takes nothing more, as on a full disk; trials are stored elsewhere."""
    try:
        sys.stdout.flush()
    except OSError as error:
        print(f"autofit: the output cannot be written: {error.strerror}; finished trials are kept", file=sys.stderr)
        os._exit(1)  # the interpreter would try to flush it once more


if __name__ == "__main__":
    main()
