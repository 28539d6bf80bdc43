"""Entry point of the `autofit` command: handles Ctrl-C before the slow imports begin."""

from __future__ import annotations

import io
import os
import sys

_INTERRUPTED = 130


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal in ASCII shows what it can
            stream.reconfigure(errors="replace")
    try:
        from autofit.cli import app  # slow: Ctrl-C must work during it

        app()
    except KeyboardInterrupt:
        print("\nInterrupted; nothing was run.", file=sys.stderr)
        raise SystemExit(_INTERRUPTED) from None
    except OSError:
        _end_if_output_is_full()
        raise


def _end_if_output_is_full() -> None:
    """End with a message where standard output takes nothing more, as on a full disk; trials are stored elsewhere."""
    try:
        sys.stdout.flush()
    except OSError as error:
        print(f"autofit: the output cannot be written: {error.strerror}; finished trials are kept", file=sys.stderr)
        os._exit(1)  # the interpreter would try to flush it once more


if __name__ == "__main__":
    main()
