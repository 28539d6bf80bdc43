"""How a command ends when it does not end well."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import typer

from autofit.errors import AutofitError, UsageError

INTERRUPTED = 130


@contextlib.contextmanager
def told(interrupted: Callable[[], str] = lambda: "every process is ended.") -> Iterator[None]:
    """Turn an error into its message and exit code; say at Ctrl-C what `interrupted` does."""
    try:
        yield
    except AutofitError as error:
        typer.echo(f"autofit: {error}", err=True)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        typer.echo(f"\nInterrupted; {interrupted()}", err=True)
        raise typer.Exit(INTERRUPTED) from None


def check_place(option: str, path: Path | None) -> None:
    """See that a file can be written there, before anything is spent on what would be in it.

    Raises:
        UsageError: it is a folder, or its folder is not there.
    """
    if path is not None and path.is_dir():
        raise UsageError(f"{option}: {path} is a folder; name a file in it")
    if path is not None and not path.parent.is_dir():
        raise UsageError(f"{option}: there is no folder {path.parent}; make it first")
