"""The terminal, and results on it or as plain text: tables of trials, sweep cells and estimates, and a tune's summary."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, get_args

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from autofit.records.description import WITHIN_ERROR, EstimateRecord
from autofit.records.result import CellOutcome, SweepRecord, TuneRecord
from autofit.records.states import Outcome
from autofit.records.trial import Limits, Trial
from autofit.records.units import counted, format_bytes, format_seconds, printable
from autofit.report.choice import NONE, advice, figures, headlines, limits_in_words, model_in_words
from autofit.report.columns import (
    FASTEST,
    OWN_BATCH,
    TEXTS,
    cell_label,
    cell_rows,
    peak_share,
    trial_rows,
)
from autofit.report.snippet import render

_PLAIN_WIDTH = 80  # characters: the narrowest common terminal
_BAR_CHARACTERS = 6
_TRIAL_STYLES = {
    Outcome.OK: "green",
    Outcome.ERROR: "bold red",
    Outcome.TIMEOUT: "magenta",
    Outcome.CRASHED: "magenta",
}
_CELL_STYLES = {"ok": "", "does not fit": "yellow", "failed": "bold red", "waiting": "dim"}
_TRIAL_COLUMNS = (
    "trial",
    "batch",
    "workers",
    "queue",
    "outcome",
    "samples/s",
    "device",
    "host",
    "seconds",
)
_LONG = (FASTEST, "gain", "tuned on")  # columns whose text may wrap
_PART_NAMES = {
    "optimizer": "optimizer state",
    "process": "process, model, data",
    "step": "train step",
}


class Terminal(Console):
    """A console that shows control characters in content as �, so that content cannot control the terminal."""

    def __init__(self, **options: Any) -> None:
        # in a notebook, lines are text in one output: rich would make an output of each, and draws tables again and again
        # only where ipywidgets is installed. The standard output of a kernel says that it is a terminal, which it is not
        self.is_in_notebook = Console().is_jupyter
        plain = {"force_jupyter": False, "force_terminal": False} if self.is_in_notebook else {}
        super().__init__(**{"highlight": False, **plain, **options})

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as `Console.render` does, and replace control characters; all content passes through this method."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def plain_text(drawing: RenderableType) -> str:
    """Return a drawing as text of 80 columns without colour; `print` and the interpreter show a result this way."""
    console = Terminal(
        width=_PLAIN_WIDTH, file=io.StringIO(), force_terminal=False, color_system=None
    )
    with console.capture() as captured:
        console.print(drawing, crop=False)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def trial_table(
    trials: Sequence[Trial], limits: Limits | None, *, newest_first: bool = False
) -> Table:
    """Return a table with a row for each trial; bars show the peaks relative to the limits."""
    table = _grid()
    for column in _TRIAL_COLUMNS:
        table.add_column(column, justify="left" if column in TEXTS else "right")
    rows = list(zip(trials, trial_rows(trials, limits), strict=True))
    for trial, row in reversed(rows) if newest_first else rows:
        shares = {memory: peak_share(trial, limits, memory) for memory in ("device", "host")}
        texts = row | {memory: _bar(share) for memory, share in shares.items() if share is not None}
        style = _TRIAL_STYLES.get(trial.measurement.outcome, "yellow")
        table.add_row(
            *(
                Text(texts[column], style if column == "outcome" else "")
                for column in _TRIAL_COLUMNS
            )
        )
    return table


def _grid(padding: int = 1) -> Table:
    return Table(box=None, padding=(0, padding, 0, 0), pad_edge=False)


def _bar(share: float) -> str:
    full = min(_BAR_CHARACTERS, round(share * _BAR_CHARACTERS))
    return f"{'█' * full}{'░' * (_BAR_CHARACTERS - full)} {share:.0%}"


def sweep_table(record: SweepRecord) -> Group:
    """Return a table with a row for each cell (values, fastest config, rate, memory, bottleneck), and list the failures."""
    table, rows = _grid(), cell_rows(record)
    unused = {
        OWN_BATCH,
        "" if record.hosts else "tuned on",
    }  # 80 columns have no room for the first one
    columns = [column for column in (rows[0] if rows else ()) if column not in unused]
    axes = columns[: len(record.axes)]
    for column in columns:
        is_left, is_long = column in (*axes, *TEXTS), column in (*axes, *_LONG)
        table.add_column(
            column, justify="left" if is_left else "right", no_wrap=not is_long, overflow="fold"
        )
    for cell, row in zip(record.cells, rows, strict=True):
        table.add_row(
            *(
                Text(row[name], _CELL_STYLES[cell.outcome] if name == FASTEST else "")
                for name in columns
            )
        )
    failures = [
        Text(f"\n{cell_label(cell.values)}: {cell.problem_line}")
        for cell in record.cells
        if cell.problem
    ]
    outcomes = [cell.outcome for cell in record.cells]
    tally = [
        f"{outcomes.count(outcome)} {outcome}"
        for outcome in get_args(CellOutcome)
        if outcome in outcomes
    ]
    total = f"\n{counted(len(record.cells), 'cell')}: {', '.join(tally)}; {format_seconds(record.seconds)} in this run"
    return Group(table, *failures, Text(total))


def labelled(rows: Iterable[tuple[str, str]]) -> Table:
    """Return a grid of texts, each after its label."""
    grid = Table.grid(padding=(0, 2))
    for label, text in rows:
        grid.add_row(Text(label, style="bold"), Text(text, overflow="fold"))
    return grid


def summary(record: TuneRecord) -> Group:
    """Return the answers of a tune, what is to say about them, and the lines to paste."""
    texts, shown = advice(record), headlines(record)
    rows = [
        ("baseline", texts.pop("baseline")),
        *(
            row
            for headline in shown
            for row in (
                (headline.label, str(headline)),
                *(("to adjust", sentence) for sentence in headline.adjustments),
            )
        ),
        *figures(record, record.fastest).items(),
        *texts.items(),
    ]
    blocks: list[Any] = [labelled(rows)]
    for headline in shown:
        blocks += [
            f"\n{headline.use}:\n",
            Text(render(record, headline.answer), no_wrap=True, overflow="ignore"),
        ]
    return Group(*blocks)


def summarise(record: TuneRecord, console: Console) -> None:
    """Print the summary of a result."""
    console.print()
    console.print(summary(record), crop=False)


def estimate_table(estimate: EstimateRecord) -> Group:
    """Show the parts and totals of device and host memory for each batch size, and the largest batch size that fits."""
    others = replace(estimate.config, batch_size=None)
    # all footprints have the method and the error bounds of the first
    of_gpus = (footprint for gpu in estimate.gpus for footprint in gpu.footprints)
    footprint = next(of_gpus) if estimate.gpus else estimate.description.footprints[0]
    error, least = (
        f"{footprint.relative_error:.0%} of the measured peak",
        footprint.absolute_error_bytes,
    )
    error += f" (or {format_bytes(least)}, if that is more)" if least else ""
    facts = {
        "model": model_in_words(estimate.description),
        "machine": f"{estimate.device}, {counted(estimate.machine.cores, 'core')}",
        "limits": limits_in_words(estimate.limits),
        "input": str(others) if others.values() else estimate.description.input_kind,
        "method": f"{footprint.method}; {WITHIN_ERROR:.0%} of such estimates are within {error}",
    }
    if estimate.gpus:
        facts = {name: facts[name] for name in ("model", "method")}
        notes = [f"{gpu.gpu}: {gpu.problem}" for gpu in estimate.gpus if gpu.problem]
        return Group(labelled(facts.items()), "", _gpu_table(estimate), "", *notes)
    table = _grid(padding=2)
    table.add_column("batch size")
    for row in estimate.rows:
        table.add_column(f"{row.batch_size}", justify="right")
    for memory in ("device", "host"):
        parts = [getattr(row, f"{memory}_bytes_by_part") for row in estimate.rows]
        table.add_row(Text(f"{memory.upper()}, at the peak", style="bold"))
        for name in parts[0]:
            if any(part[name] for part in parts):
                label = _PART_NAMES.get(name, name.replace("_", " "))
                table.add_row(f"  {label}", *(format_bytes(part[name]) for part in parts))
        table.add_row(
            "  total",
            *(format_bytes(sum(part.values())) for part in parts),
            style="bold",
            end_section=True,
        )
    verdicts = [  # "perhaps" if only an upper bound exceeds a limit
        "yes"
        if row.fits
        else "perhaps"
        if estimate.limits.allow(row.device_bytes, row.host_bytes)
        else "no"
        for row in estimate.rows
    ]
    table.add_row("expected to fit", *verdicts, style="bold")
    conclusion = "Not even a batch size of 1 is expected to fit."
    if (largest := estimate.largest_batch_size) is not None:
        conclusion = f"Largest batch size whose upper bounds are within the limits: {largest}."
    return Group(labelled(facts.items()), "", table, "", conclusion)


def _gpu_table(estimate: EstimateRecord) -> Table:
    table = _grid(padding=2)
    for name in ("GPU", "memory", "a program gets", "largest batch", "takes", "share"):
        table.add_column(name, justify="left" if name == "GPU" else "right")
    for gpu in estimate.gpus:
        taken = next(
            (
                each.device_bytes
                for each in gpu.footprints
                if each.batch_size == gpu.largest_batch_size
            ),
            None,
        )
        answer = ("none fits" if gpu.footprints else "unknown", NONE, NONE)
        if taken is not None:
            answer = (
                f"{gpu.largest_batch_size:,}",
                format_bytes(taken),
                f"{taken / gpu.usable_bytes:.0%}",
            )
        table.add_row(
            gpu.gpu, format_bytes(gpu.total_bytes), format_bytes(gpu.usable_bytes), *answer
        )
    return table
