"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

_File = Annotated[Path, typer.Argument(help="YAML file that names the model, the data and the limits.")]
_Storage = Annotated[
    str | None,
    typer.Option(
        help="Where trials are kept: sqlite:///FILE, postgresql://…, journal:FILE, or the path of an SQLite file."
    ),
]
_Launch = Annotated[str | None, typer.Option(help="How a trial gets its process: auto, fork or plain.")]
_Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress, only the result.")]


def _given(**options: Any) -> dict[str, Any]:
    """The options that take precedence over the file."""
    return {key: value for key, value in options.items() if value is not None}


_Result = Annotated[Path, typer.Argument(help="A file that autofit tune --output wrote.")]
_ResultOrSweep = Annotated[Path, typer.Argument(help="A file that autofit tune --output or autofit sweep wrote.")]
