"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

File = Annotated[Path, typer.Argument(metavar="FILE", help="YAML file that names the model, the data and the limits.")]
Result = Annotated[Path, typer.Argument(metavar="RESULT", help="File written by autofit tune --output.")]
ResultOrSweep = Annotated[
    Path, typer.Argument(metavar="RESULT", help="File written by autofit tune --output or autofit sweep.")
]
Storage = Annotated[
    str | None,
    typer.Option(help="Trial storage: the path of an SQLite file, sqlite:///FILE, postgresql://… or journal:FILE."),
]
Launch = Annotated[str | None, typer.Option(help="How to start the process of a trial: auto, fork or plain.")]
Wait = Annotated[
    bool,
    typer.Option(
        "--wait/--no-wait", help="Wait while another autofit measures on the device, or exit with an error at once."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print only the result, without progress.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def overrides(
    *, storage: str | None = None, launch: str | None = None, fresh: bool = False, wait: bool = True
) -> dict[str, Any]:
    """Return the arguments of `tune` that were given on the command line; they override the file."""
    given = {"launch": launch, "fresh": fresh or None, "wait": None if wait else False}
    options = {name: value for name, value in given.items() if value is not None}
    return {name: value for name, value in (("storage", storage), ("options", options)) if value}
