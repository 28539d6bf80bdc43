"""Where the command starts: ready for Ctrl-C before anything that takes its time is loaded."""

from __future__ import annotations

import sys

_INTERRUPTED = 130


def main() -> None:
    """Run the command line."""
    try:
        from autofit.cli import app  # takes a second to load, in which a person may think better of it

        app()
    except KeyboardInterrupt:
        print("\nInterrupted; nothing was run.", file=sys.stderr)
        raise SystemExit(_INTERRUPTED) from None


if __name__ == "__main__":
    main()
