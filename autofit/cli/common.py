"""What the commands share: options, and how errors and Ctrl-C become messages and exit codes."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from autofit.api.config import load
from autofit.errors import AutofitError, TuneError, UsageError
from autofit.records.result import FailedCommand
from autofit.records.units import printable
from autofit.storage import result_files
from autofit.workload.script import is_named

_TEXTS = load.texts()

File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="YAML file that names the model, the data and the limits."
    ),
]
ScriptOrFile = Annotated[
    Path | None,
    typer.Argument(metavar="SCRIPT|FILE", help="Training script, or YAML file."),
]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- ARGUMENTS]", help="Arguments of the script.", show_default=False
    ),
]
Module = Annotated[
    str | None,
    typer.Option("-m", metavar="MODULE", help="Tune a module, as python -m runs it."),
]
Places = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KNOB=PLACE",
        help="Where the script sets a knob: batch_size=train.py:12 or batch_size=--bs.",
    ),
]
Fit = Annotated[
    int,
    typer.Option(metavar="N", help="Tune the N-th call of fit.", show_default=False),
]
Writes = Annotated[
    bool,
    typer.Option(
        "--writes",
        help="Let the script write, delete, connect and start programs before it calls fit.",
    ),
]
Result = Annotated[
    Path,
    typer.Argument(
        metavar="RESULT", help="File written by autofit tune --output or autofit sweep."
    ),
]
BatchSize = Annotated[
    str | None, typer.Option(metavar="SIZE", help=_TEXTS.get("batch_size"))
]
Storage = Annotated[str | None, typer.Option(metavar="URL", help=_TEXTS.get("storage"))]
Launch = Annotated[str | None, typer.Option(metavar="HOW", help=_TEXTS.get("launch"))]
MaxSeconds = Annotated[
    float | None, typer.Option(metavar="SECONDS", help=_TEXTS.get("max_seconds"))
]
Fresh = Annotated[
    bool,
    typer.Option("--fresh", help="Delete the stored trials of the same request first."),
]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help=_TEXTS.get("wait"))]
Quiet = Annotated[
    bool, typer.Option("--quiet", help="Print only the result, without progress.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def overrides(
    *,
    storage: str | None,
    batch_size: str | None = None,
    max_seconds: float | None = None,
    launch: str | None = None,
    fresh: bool = False,
    wait: bool = True,
) -> dict[str, Any]:
    """Return the arguments of `tune` that were given on the command line.

    They override the file.
    """
    size = int(batch_size) if batch_size and batch_size.isdecimal() else batch_size
    options = _given(
        {"launch": launch, "fresh": fresh or None, "wait": None if wait else False}
    )
    return _given(
        {
            "batch_size": size,
            "max_seconds": max_seconds,
            "storage": storage,
            "options": options or None,
        }
    )


def script_of(
    file: Path | None,
    arguments: Sequence[str] | None,
    module: str | None,
    places: Sequence[str] | None,
    *,
    fit: int,
    writes: bool,
) -> dict[str, Any] | None:
    """Return the arguments of `tune_script`; None if the command line names a tuning file.

    Raise UsageError if it names neither.
    """
    given = list(arguments or ())
    if module is not None:
        # what stands first is an argument then
        if file is not None:
            given.insert(0, str(file))
        script = f"-m {module}"
    elif file is not None and is_named(str(file)):
        script = str(file)
    elif file is None:
        raise UsageError("give a script or a tuning file; --help shows both")
    else:
        return None
    pairs = [part.partition("=") for part in places or ()]
    if wrong := [knob for knob, _, place in pairs if not place]:
        raise UsageError(
            f"{wrong[0]!r} names no place; write batch_size=FILE:LINE", key="--set"
        )
    named = {knob: place for knob, _, place in pairs}
    return {
        "script": script,
        "arguments": given,
        "places": named,
        "fit": fit,
        "writes": writes,
    }


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


@contextlib.contextmanager
def reporting_errors(*, resumes: bool = False, as_json: bool = False) -> Iterator[None]:
    """Turn an error into its message and exit code; with `as_json`, also print a document.

    After Ctrl-C, the message says whether the same command resumes.
    """
    try:
        yield
    except AutofitError as error:
        typer.echo(f"autofit: {printable(str(error))}", err=True)
        if as_json:
            typer.echo(_error_as_json(error))
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        if as_json:
            typer.echo(result_files.as_json(FailedCommand("interrupted")))
        message = "\nInterrupted; all processes have ended."
        if resumes:
            message += " Finished trials are kept; to resume, run the same command without --fresh."
        typer.echo(message, err=True)
        # 128 + SIGINT; `__main__` replaces it after another signal
        raise typer.Exit(130) from None


def _error_as_json(error: AutofitError) -> str:
    """Return a failed tune, or the problem alone if nothing was run."""
    failed = error.tune if isinstance(error, TuneError) else None
    return result_files.as_json(failed or FailedCommand(str(error)))


def require_writable(path: Path) -> None:
    """Raise UsageError if the path given as --output is a folder, or is in a folder that takes no
    file.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file in it", key="--output")
    if not path.parent.is_dir():
        raise UsageError(
            f"the folder {path.parent} does not exist; create it first", key="--output"
        )
    is_device_or_pipe = path.exists() and not path.is_file()
    if is_device_or_pipe:
        return
    try:
        with tempfile.TemporaryFile(dir=Path(os.path.realpath(path)).parent):
            pass
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written ({error.strerror}); give another path",
            key="--output",
        ) from None
