"""What the commands share: options, and how errors and Ctrl-C become messages and exit codes."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from autofit.api.config import load
from autofit.errors import AutofitError, UsageError
from autofit.records.units import printable

_TEXTS = load.texts()

File = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="YAML file that names the model, the data and the limits."),
]
Result = Annotated[
    Path,
    typer.Argument(
        metavar="RESULT", help="File written by autofit tune --output or autofit sweep."
    ),
]
BatchSize = Annotated[str | None, typer.Option(metavar="SIZE", help=_TEXTS.get("batch_size"))]
Storage = Annotated[str | None, typer.Option(metavar="URL", help=_TEXTS.get("storage"))]
Launch = Annotated[str | None, typer.Option(metavar="HOW", help=_TEXTS.get("launch"))]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Delete the stored trials of the same request first.")
]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help=_TEXTS.get("wait"))]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print only the result, without progress.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def overrides(
    *,
    storage: str | None,
    batch_size: str | None = None,
    launch: str | None = None,
    fresh: bool = False,
    wait: bool = True,
) -> dict[str, Any]:
    """Return the arguments of `tune` that were given on the command line; they override the file."""
    size = int(batch_size) if batch_size and batch_size.isdecimal() else batch_size
    options = _given({"launch": launch, "fresh": fresh or None, "wait": None if wait else False})
    return _given({"batch_size": size, "storage": storage, "options": options or None})


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


@contextlib.contextmanager
def reporting_errors(*, resumes: bool = False) -> Iterator[None]:
    """Turn an error into its message and exit code; after Ctrl-C, the message says whether the same command resumes."""
    try:
        yield
    except AutofitError as error:
        typer.echo(f"autofit: {printable(str(error))}", err=True)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        resume = (
            " Finished trials are kept; to resume, run the same command without --fresh."
            if resumes
            else ""
        )
        typer.echo(f"\nInterrupted; all processes have ended.{resume}", err=True)
        raise typer.Exit(130) from None  # 128 + SIGINT; `__main__` replaces it after another signal


def require_writable(path: Path) -> None:
    """Raise UsageError if the path given as --output is a folder, or is in a folder that takes no file."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file in it", key="--output")
    if not path.parent.is_dir():
        raise UsageError(
            f"the folder {path.parent} does not exist; create it first", key="--output"
        )
    if path.exists() and not path.is_file():  # a device or a pipe
        return
    try:
        with tempfile.TemporaryFile(dir=Path(os.path.realpath(path)).parent):
            pass
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written ({error.strerror}); give another path", key="--output"
        ) from None
