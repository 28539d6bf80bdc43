"""`autofit check`, `autofit estimate` and `autofit schema`: commands on YAML files that train nothing."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from autofit import api
from autofit.api.config import load
from autofit.cli.exit import reporting_errors
from autofit.cli.options import File, Storage, overrides
from autofit.errors import UsageError
from autofit.report import wording
from autofit.report.console.progress import Progress
from autofit.report.console.tables import estimate_as_json, estimate_table, labelled
from autofit.report.console.terminal import Terminal

_SIZES = ",".join(map(str, api.BATCH_SIZES))


def check(file: File, storage: Storage = None) -> None:
    """Check FILE, the functions it names, the limits and the device, without running anything.

    Imports your modules, but calls none of their functions. For a sweep, checks every cell.
    """
    console = Terminal()
    with reporting_errors():
        cells = api.check_file(file, **overrides(storage=storage))
        for number, (values, checked) in enumerate(cells, 1):
            if values:
                console.print(f"cell {number} of {len(cells)}: {wording.cell_label(values)}", style="bold", markup=False)
            console.print(labelled(checked.items()))
        console.print(f"\n{file} is valid; nothing was run", markup=False, soft_wrap=True)


def estimate(
    file: File,
    batch_size: Annotated[
        str | None, typer.Option(help=f"Batch sizes, separated by commas.  [default: {_SIZES}]", metavar="N,N,…")
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option(help='A GPU that need not be here, such as "A100-40GB"; give several, or "all".', metavar="NAME"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with sizes in bytes.")] = False,
) -> None:
    """Estimate the memory that training takes at each batch size, without training.

    Prints the memory by part, and compares it with the limits. The other knobs have the values of the baseline in FILE,
    or else Keras's defaults. With --gpu, tells the largest batch that fits on GPUs that you do not have.
    """
    with reporting_errors():
        try:
            sizes = None if batch_size is None else [int(part) for part in batch_size.split(",")]
        except ValueError:
            problem = f"{batch_size!r} is not allowed; separate whole numbers by commas: 32,64,128"
            raise UsageError(problem, key="--batch-size") from None
        progress = Progress(Terminal(stderr=True), quiet=as_json)
        with load.placing_errors(file):
            result = api.estimate_of(load.load(file), sizes, gpu or (), progress)
        if as_json:
            typer.echo(estimate_as_json(result))
        else:
            Terminal().print(estimate_table(result))


def schema() -> None:
    """Print the JSON Schema of the YAML files, for completion and validation in editors.

    For an editor with the YAML language server, save the schema and name it in the first line of the YAML file:

    `autofit schema > autofit.schema.json`

    `# yaml-language-server: $schema=autofit.schema.json`
    """
    typer.echo(json.dumps(load.schema(), indent=2))
