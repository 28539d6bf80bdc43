"""Turn errors and Ctrl-C into messages and exit codes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import typer

from autofit.errors import AutofitError, UsageError
from autofit.records.units import printable


@contextlib.contextmanager
def reporting_errors(kept: Callable[[], str] | None = None, options: Mapping[str, str] | None = None) -> Iterator[None]:
    """Turn an error into its message and exit code.

    Args:
        kept: returns a sentence, without its full stop, on the results that are kept after Ctrl-C; None if none are kept.
        options: the command-line option of each argument, which the message of an error in that argument names.
    """
    try:
        yield
    except AutofitError as error:
        if isinstance(error, UsageError) and (option := (options or {}).get(error.key or "")):
            error = UsageError(error.problem, key=option)
        typer.echo(f"autofit: {printable(str(error))}", err=True)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        resume = f" {kept()}. To resume, run the same command without --fresh." if kept else ""
        typer.echo(f"\nInterrupted; all processes have ended.{resume}", err=True)
        raise typer.Exit(130) from None  # 128 + SIGINT; `__main__` replaces it after another signal


def require_writable(option: str, path: Path | None) -> None:
    """Raise UsageError if `path` is a folder or its folder does not exist; do nothing if `path` is None."""
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file in it", key=option)
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}; create it first", key=option)
