"""`autofit noise`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from autofit import api
from autofit.cli.exit import reporting_errors
from autofit.cli.options import File, Launch, Wait, overrides
from autofit.errors import UsageError
from autofit.records.noise import STEPS
from autofit.report.console.progress import Progress
from autofit.report.console.tables import print_noise_scale
from autofit.report.console.terminal import Terminal


def noise(
    file: File,
    weights: Annotated[
        Path | None, typer.Option(help="Measure at the weights in this file (.weights.h5 or .keras), and train nothing.")
    ] = None,
    at: Annotated[
        str, typer.Option(help="Updates of the weights after which to measure, separated by commas.", metavar="N,N,…")
    ] = ",".join(map(str, STEPS)),
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples in a microbatch.  [default: the baseline's, or less]", metavar="N")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="About how long to train and measure.")] = 120.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    wait: Wait = True,
    launch: Launch = None,
) -> None:
    """Measure the gradient noise scale: the batch size beyond which each further sample in a batch helps less.

    Trains the model of FILE for a short time, and reads the gradients of many batches while the weights stay as they are.

    Exit codes: 0 a scale or a bound was measured; 1 none, for the reason printed; 2 wrong arguments or YAML.
    """
    with reporting_errors(options={"at_steps": "--at", "weights": "--weights", "batch_size": "--batch-size"}):
        try:
            steps = [int(part) for part in at.split(",")]
        except ValueError:
            raise UsageError(f"{at!r} is not allowed; separate whole numbers by commas: 100,400", key="--at") from None
        scale = api.measure_noise_file(
            file,
            at_steps=steps,
            weights=weights,
            batch_size=batch_size,
            seconds=seconds,
            wait=wait,
            progress=Progress(Terminal(stderr=True), quiet=as_json),
            **overrides(launch=launch),
        )
        if as_json:
            typer.echo(json.dumps(asdict(scale), indent=2))
        else:
            print_noise_scale(scale, Terminal())
        if scale.low is None:
            raise typer.Exit(1)
