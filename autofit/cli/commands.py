"""The commands on YAML files (tune, sweep, estimate, schema) and on saved results (report, kwargs,
show).
"""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
import yaml

import autofit
from autofit.api.config import load
from autofit.api.measure import BATCH_SIZES
from autofit.api.result import Result
from autofit.api.sweep import sweep_cells
from autofit.api.tune import tune_arguments
from autofit.api.why import explain, run_why
from autofit.cli import common
from autofit.cli.common import overrides, reporting_errors, require_writable
from autofit.errors import TuneError, UsageError
from autofit.records.result import FailedTune, SweepRecord
from autofit.report import snippet
from autofit.report.console.epoch import epoch_table
from autofit.report.console.progress import Progress
from autofit.report.console.tables import (
    Terminal,
    estimate_table,
    summarise,
    sweep_table,
    trial_table,
)
from autofit.report.html import page
from autofit.storage import result_files

_SIZES = ",".join(map(str, BATCH_SIZES))
_SWEEP = Path("sweep.json")


SameBatch = Annotated[
    bool,
    typer.Option(
        "--same-batch", help="The answer at your own batch size, not the fastest."
    ),
]


def tune(
    file: common.ScriptOrFile = None,
    arguments: common.Arguments = None,
    module: common.Module = None,
    places: common.Places = None,
    fit: common.Fit = 0,
    writes: common.Writes = False,
    output: Annotated[
        Path | None, typer.Option(help="Write the result to this JSON file.")
    ] = None,
    batch_size: common.BatchSize = None,
    max_seconds: common.MaxSeconds = None,
    storage: common.Storage = None,
    fresh: common.Fresh = False,
    wait: common.Wait = True,
    quiet: common.Quiet = False,
    launch: common.Launch = None,
    as_json: common.Json = False,
) -> None:
    """Find the fastest configuration of a training script, or of a tuning file, and print what sets
    it.

    "autofit tune train.py -- --data photos" runs train.py up to its call of fit in each trial, and
    prints a diff. "autofit tune tune.yaml" tunes the functions, or the script, that the file names.

    Trials are stored as they end. Run the same command again to resume, or to print the result if
    it is stored already.
    """
    console = Terminal(stderr=as_json)
    with reporting_errors(resumes=True, as_json=as_json):
        if output is not None:
            require_writable(output)
        try:
            given = overrides(
                batch_size=batch_size,
                max_seconds=max_seconds,
                storage=storage,
                launch=launch,
                fresh=fresh,
                wait=wait,
            )
            shown = Progress(console, quiet=quiet)
            asked = common.script_of(
                file, arguments, module, places, fit=fit, writes=writes
            )
            with _arguments(asked, file, given) as arguments_of_tune:
                result = tune_arguments(arguments_of_tune, shown)
        except TuneError as error:
            if output is not None and error.tune is not None:
                _save_failed(error.tune, output)
            raise
        if as_json:
            typer.echo(result_files.as_json(result))
        else:
            summarise(result, console)
        if output is not None:
            result.save(output)
            written = [str(output), *_patches(result, output)]
            console.print(
                f"\nwritten to {', '.join(written)}", markup=False, soft_wrap=True
            )
            if len(written) > 1:
                console.print(
                    f"to apply a patch: patch -p0 < {written[-1]}", markup=False
                )


@contextlib.contextmanager
def _arguments(
    asked: Mapping[str, Any] | None, file: Path | None, given: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Give the arguments of `tune`: those of a script that is asked for, or of a file."""
    if asked is not None:
        yield {**asked, **given}
        return
    assert file is not None
    with load.placing_errors(file, given):
        yield load.load(file, given)


def why(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="SCRIPT|FILE|RESULT",
            help="Training script, YAML file, or a result of autofit tune --output.",
        ),
    ] = None,
    arguments: common.Arguments = None,
    module: common.Module = None,
    places: common.Places = None,
    fit: common.Fit = 0,
    writes: common.Writes = False,
    storage: common.Storage = None,
    fresh: common.Fresh = False,
    wait: common.Wait = True,
    quiet: common.Quiet = False,
    launch: common.Launch = None,
    as_json: common.Json = False,
) -> None:
    """Tell where the time of an epoch goes, and what each remedy gives, measured.

    Runs the first trials of a tune, in about a minute: your present configuration, and up to two
    changes of what takes most of an epoch. They are stored: autofit tune goes on with them. A
    RESULT is explained by the trials that it has.
    """
    with reporting_errors(resumes=True, as_json=as_json):
        asked = common.script_of(
            file, arguments, module, places, fit=fit, writes=writes
        )
        if asked is None and file is not None and file.suffix == ".json":
            record = explain(result_files.load_tune(file))
        else:
            given = overrides(storage=storage, launch=launch, fresh=fresh, wait=wait)
            shown = Progress(Terminal(stderr=as_json), quiet=quiet)
            with _arguments(asked, file, given) as arguments_of_tune:
                record = run_why(arguments_of_tune, shown)
        if as_json:
            typer.echo(result_files.as_json(record))
        else:
            is_saved = file is not None and file.suffix == ".json"
            Terminal().print(epoch_table(record, "" if is_saved else _tune_command()))


def _tune_command() -> str:
    """Return the command that tunes what this one is about."""
    kept = [part for part in sys.argv[2:] if part not in ("--quiet", "--fresh")]
    return shlex.join(["autofit", "tune", *kept])


def _save_failed(tune: FailedTune, output: Path) -> None:
    """Write a failed tune, or say why it is not written; the caller says why the tune failed."""
    message = f"the failed tune is written to {output}; to view it, run autofit report {output}"
    try:
        result_files.save(tune, output)
    except UsageError as error:
        message = str(error)
    typer.echo(f"{message}\n", err=True)


def _patches(result: Result, output: Path) -> Iterator[str]:
    """Write the diffs of a script's answers beside the result; yield their files."""
    if not result.call_source.script:
        return
    answers = {"fastest": result.fastest}
    own = result.same_batch
    if own is not None and own.config != result.fastest.config:
        answers = {"same_batch": own, **answers}
    for name, answer in answers.items():
        if answer.code.startswith("---"):
            path = output.with_suffix(f".{name}.patch")
            result_files.write(answer.code, path)
            yield str(path)


def sweep(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="YAML file with a matrix of the values to vary."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            help="Write all results to this JSON file and a CSV file next to it."
        ),
    ] = _SWEEP,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="K/N",
            help="Tune a part of the cells: every N-th from the K-th on. Each part writes a file "
            "of its own.",
        ),
    ] = None,
    on: Annotated[
        str,
        typer.Option(
            help="Where to tune: local, ray (a cluster on this machine or at RAY_ADDRESS) or "
            "ray://HOST:PORT."
        ),
    ] = "local",
    ship: Annotated[
        Path | None,
        typer.Option(
            help="Folder with your code that Ray copies to each host; not needed if the hosts "
            "share it."
        ),
    ] = None,
    storage: common.Storage = None,
    fresh: common.Fresh = False,
    wait: common.Wait = True,
    quiet: common.Quiet = False,
    launch: common.Launch = None,
) -> None:
    """Tune every cell of the matrix in FILE, and print a table with the fastest configuration of
    each.

    The table also has a row for each failed cell. Results are saved after every cell. Run the same
    command again to resume.

    Exit codes: 0 at least one cell has a result; 1 no cell has one; 2 wrong arguments, YAML or
    storage; 130 interrupted.
    """
    console = Terminal()
    with reporting_errors(resumes=True):
        if only is not None:
            output = output.with_stem(f"{output.stem}-{only.replace('/', '-of-')}")
        table = result_files.csv_path(output)
        for path in (output, table):
            require_writable(path)
        given = overrides(storage=storage, launch=launch, fresh=fresh, wait=wait)
        cells = load.load_cells(file, given, sweep=True)
        swept = sweep_cells(
            cells,
            title=str(file),
            executor=on,
            ship=ship,
            only=only,
            progress=Progress(console, quiet=quiet),
            save=lambda swept: swept.save(output),
        )
        console.print()
        console.print(sweep_table(swept))
        console.print(
            f"\nwritten to {output} and {table}", markup=False, soft_wrap=True
        )
        if not any(cell.outcome == "ok" for cell in swept.cells):
            raise typer.Exit(1)


def estimate(
    file: common.ScriptOrFile = None,
    arguments: common.Arguments = None,
    module: common.Module = None,
    places: common.Places = None,
    fit: common.Fit = 0,
    writes: common.Writes = False,
    batch_size: Annotated[
        str | None,
        typer.Option(
            help=f"Batch sizes, separated by commas.  [default: {_SIZES}]",
            metavar="N,N,…",
        ),
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            help='A GPU that need not be here, such as "A100-40GB"; give several, or "all".',
            metavar="NAME",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with sizes in bytes.")
    ] = False,
) -> None:
    """Estimate the memory that training takes at each batch size, without training.

    FILE is a tuning file, or a training script, which runs up to its call of fit. Prints the memory
    by part, and compares it with the limits. The other knobs have the values of the baseline in
    FILE, or else Keras's defaults. With --gpu, tells the largest batch that fits on GPUs that you
    do not have.
    """
    with reporting_errors(as_json=as_json):
        try:
            sizes = (
                None
                if batch_size is None
                else [int(part) for part in batch_size.split(",")]
            )
        except ValueError:
            raise UsageError(
                f"{batch_size!r} is not allowed; separate whole numbers by commas: 32,64,128",
                key="--batch-size",
            ) from None
        given: dict[str, Any] = {
            "batch_size": sizes,
            "gpu": gpu or (),
            "progress": Progress(Terminal(stderr=True), quiet=as_json),
        }
        asked = common.script_of(
            file, arguments, module, places, fit=fit, writes=writes
        )
        if asked is not None:
            result = autofit.estimate(**asked, **given)
        else:
            assert file is not None
            with load.placing_errors(file, () if sizes is None else ("batch_size",)):
                result = autofit.estimate(**load.load(file) | given)
        if as_json:
            typer.echo(result_files.as_json(result))
        else:
            Terminal().print(estimate_table(result))


def schema(
    of: Annotated[
        Literal["files", "tune", "why"],
        typer.Argument(
            help="The YAML files, or what autofit tune or autofit why print with --json."
        ),
    ] = "files",
) -> None:
    """Print the JSON Schema of the YAML files, for completion and validation in editors.

    For an editor with the YAML language server, save the schema and name it in the first line of
    the YAML file:

    `autofit schema > autofit.schema.json`

    `# yaml-language-server: $schema=autofit.schema.json`
    """
    shown = load.schema() if of == "files" else result_files.schema_of(of)
    typer.echo(json.dumps(shown, indent=2))


def report(
    result: common.Result,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="HTML file to write; by default RESULT with the suffix .html.",
        ),
    ] = None,
) -> None:
    """Write a result or a sweep as one self-contained HTML page with the choice, plots and every
    trial.
    """
    path = result.with_suffix(".html") if output is None else output
    with reporting_errors():
        require_writable(path)
        page.save(result_files.load(result), path)
        typer.echo(f"written to {path}")


def kwargs(
    result: common.Result,
    output_format: Annotated[
        Literal["python", "json", "yaml", "patch"],
        typer.Option("--format", help="Output format."),
    ] = "python",
    same_batch: SameBatch = False,
) -> None:
    """Print the arguments of a result: data_kwargs for your data factory and fit_kwargs for fit."""
    with reporting_errors():
        answer = result_files.answer_of(
            result_files.load_tune(result), same_batch=same_batch
        )
        values = snippet.kwargs_of(answer)
        # each only if asked for: YAML takes seconds for long texts
        if output_format == "patch":
            text = answer.code.rstrip()
        elif output_format == "python":
            text = snippet.kwargs_as_python(answer)
        elif output_format == "json":
            text = json.dumps(values, indent=2)
        else:
            text = yaml.safe_dump(values, sort_keys=False).rstrip()
        typer.echo(text)


def show(
    result: common.Result,
    failed: Annotated[
        Literal["host", "device"] | None,
        typer.Option(help="The memory that your training ran out of with this result."),
    ] = None,
    same_batch: SameBatch = False,
    storage: common.Storage = None,
) -> None:
    """Show a result (every trial, the choice and the lines to paste) or the table of a sweep.

    With --failed, store that the configuration ran out of memory in your own training, so that the
    next tune of the same file chooses another one; --storage is that of the tune.
    """
    console = Terminal()
    with reporting_errors():
        record = result_files.load(result)
        if failed is not None:
            trained = Result.of(result_files.tune_of(record, result))
            trained.failed(failed, storage, same_batch=same_batch)
            config = result_files.answer_of(trained, same_batch=same_batch).config
            typer.echo(
                f"{config} counts as out of {failed} memory; the next tune chooses another "
                "configuration"
            )
        elif isinstance(record, SweepRecord):
            console.print(sweep_table(record))
        else:
            tuned = result_files.tune_of(record, result)
            console.print(trial_table(tuned.trials, tuned.limits))
            summarise(tuned, console)
