"""Entry point of the `autofit` command: handles Ctrl-C before the slow imports begin."""

from __future__ import annotations

import sys

_INTERRUPTED = 130


def main() -> None:
    """Run the command line."""
    try:
        from autofit.cli import app  # slow: Ctrl-C must work during it

        app()
    except KeyboardInterrupt:
        print("\nInterrupted; nothing was run.", file=sys.stderr)
        raise SystemExit(_INTERRUPTED) from None


if __name__ == "__main__":
    main()
