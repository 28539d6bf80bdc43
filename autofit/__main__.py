"""Entry point of the `autofit` command: handles Ctrl-C before the slow imports begin."""

from __future__ import annotations

import io
import os
import sys
from typing import NoReturn

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
    except OSError as error:
        if error.filename is not None:
            raise
        _give_up_output(error)


def _give_up_output(error: OSError) -> NoReturn:
    """End because standard output takes nothing more: a full disk; results and trials are stored elsewhere."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # for what the interpreter still flushes
    print(f"autofit: the output cannot be written: {error.strerror}; finished trials are kept", file=sys.stderr)
    os._exit(1)


if __name__ == "__main__":
    main()
