"""The terminal, and results on it or as plain text.

These are tables of trials, sweep cells and estimates, and a tune's summary.
"""

from __future__ import annotations

import io
from collections import Counter
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
from autofit.report.choice import (
    NONE,
    advice,
    figures,
    headlines,
    limits_in_words,
    model_in_words,
)
from autofit.report.columns import (
    FASTEST,
    OWN_BATCH,
    TEXTS,
    cell_label,
    cell_rows,
    peak_share,
    trial_rows,
)
from autofit.report.snippet import kind_of, render

# characters: the narrowest common terminal
_PLAIN_WIDTH = 80
_BAR_CHARACTERS = 6
_TRIAL_STYLES = {
    Outcome.OK: "green",
    Outcome.ERROR: "bold red",
    Outcome.TIMEOUT: "magenta",
    Outcome.CRASHED: "magenta",
}
_CELL_STYLES = {
    "ok": "",
    "does not fit": "yellow",
    "failed": "bold red",
    "waiting": "dim",
}
_DIFF_STYLES = {"file": "bold", "added": "green", "removed": "red", "place": "cyan"}
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
# columns whose text may wrap
_LONG = (FASTEST, "gain", "tuned on")
_PART_NAMES = {
    "optimizer": "optimizer state",
    "process": "process, model, data",
    "step": "train step",
}


class Terminal(Console):
    """A console that shows control characters in content as �: none can control the terminal."""

    def __init__(self, **options: Any) -> None:
        self.is_in_notebook = Console().is_jupyter
        if self.is_in_notebook:
            # Lines are text in one output: rich would make an output of each, and draws tables
            # again and again only where ipywidgets is installed. The standard output of a kernel
            # says that it is a terminal, which it is not.
            options = {"force_jupyter": False, "force_terminal": False, **options}
        super().__init__(**{"highlight": False, **options})

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as `Console.render` does, through which all content passes."""
        for segment in super().render(renderable, options):
            yield (
                segment
                if segment.control
                else Segment(printable(segment.text), segment.style)
            )


def plain_text(drawing: RenderableType) -> str:
    """Return a drawing as text of 80 columns without colour, as `print` shows a result."""
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
        for memory in ("device", "host"):
            share = peak_share(trial, limits, memory)
            if share is not None:
                full = min(_BAR_CHARACTERS, round(share * _BAR_CHARACTERS))
                bar = "█" * full + "░" * (_BAR_CHARACTERS - full)
                row[memory] = f"{bar} {share:.0%}"
        texts = [Text(row[column]) for column in _TRIAL_COLUMNS]
        outcome = texts[_TRIAL_COLUMNS.index("outcome")]
        outcome.style = _TRIAL_STYLES.get(trial.measurement.outcome, "yellow")
        table.add_row(*texts)
    return table


def _grid(padding: int = 1) -> Table:
    return Table(box=None, padding=(0, padding, 0, 0), pad_edge=False)


def sweep_table(record: SweepRecord) -> Group:
    """Return a table with a row for each cell, and list the failures."""
    rows = cell_rows(record)
    # 80 columns have no room for the first one
    unused = {OWN_BATCH} if record.hosts else {OWN_BATCH, "tuned on"}
    columns = [column for row in rows[:1] for column in row if column not in unused]
    axes = columns[: len(record.axes)]
    table = _grid()
    for column in columns:
        table.add_column(
            column,
            justify="left" if column in (*axes, *TEXTS) else "right",
            no_wrap=column not in (*axes, *_LONG),
            overflow="fold",
        )
    failures = []
    for cell, row in zip(record.cells, rows, strict=True):
        texts = {column: Text(row[column]) for column in columns}
        texts[FASTEST].style = _CELL_STYLES[cell.outcome]
        table.add_row(*texts.values())
        if cell.problem:
            failures.append(Text(f"\n{cell_label(cell.values)}: {cell.problem_line}"))
    outcomes = Counter(cell.outcome for cell in record.cells)
    tally = ", ".join(
        f"{outcomes[outcome]} {outcome}"
        for outcome in get_args(CellOutcome)
        if outcomes[outcome]
    )
    cells = counted(len(record.cells), "cell")
    total = f"\n{cells}: {tally}; {format_seconds(record.seconds)} in this run"
    return Group(table, *failures, Text(total))


def two_columns(rows: Iterable[tuple[str, str]]) -> Table:
    """Return a grid of texts, each after its label."""
    grid = Table.grid(padding=(0, 2))
    for label, text in rows:
        grid.add_row(Text(label, style="bold"), Text(text, overflow="fold"))
    return grid


def summary(record: TuneRecord) -> Group:
    """Return the answers of a tune, what is to say about them, and the lines to paste.

    Of a script, what to change comes first.
    """
    texts = advice(record)
    rows = [("baseline", texts.pop("baseline"))]
    code: list[RenderableType] = []
    for headline in headlines(record):
        rows.append((headline.label, str(headline)))
        rows += [("to adjust", sentence) for sentence in headline.adjustments]
        code += ["", f"{headline.use}:", ""]
        code.append(_coloured(render(record, headline.answer)))
    rows += figures(record, record.fastest).items()
    rows += texts.items()
    if record.call_source.script:
        return Group(*code[1:], "", two_columns(rows))
    return Group(two_columns(rows), *code)


def _coloured(code: str) -> Text:
    """Colour the lines of a diff; other code has none that begin so."""
    lines = [
        Text(line, _DIFF_STYLES.get(kind_of(line), "")) for line in code.splitlines()
    ]
    return Text("\n", no_wrap=True, overflow="ignore").join(lines)


def summarise(record: TuneRecord, console: Console) -> None:
    """Print the summary of a result."""
    console.print()
    console.print(summary(record), crop=False)


def estimate_table(estimate: EstimateRecord) -> Group:
    """Show the memory for each batch size, by part, and the largest batch size that fits.

    For GPUs that are not here, show the largest batch size of each.
    """
    facts = {"model": model_in_words(estimate.description)}
    if estimate.gpus:
        facts["method"] = _method(estimate)
        table = _gpu_table(estimate)
        notes = [f"{gpu.gpu}: {gpu.problem}" for gpu in estimate.gpus if gpu.problem]
        return Group(two_columns(facts.items()), "", table, "", *notes)
    facts["machine"] = f"{estimate.device}, {counted(estimate.machine.cores, 'core')}"
    facts["limits"] = limits_in_words(estimate.limits)
    others = replace(estimate.config, batch_size=None)
    facts["input"] = str(others) if others.values() else estimate.description.input_kind
    facts["method"] = _method(estimate)
    conclusion = "Not even a batch size of 1 is expected to fit."
    largest = estimate.largest_batch_size
    if largest is not None:
        conclusion = (
            f"Largest batch size whose upper bounds are within the limits: {largest}."
        )
    table = _memory_table(estimate)
    return Group(two_columns(facts.items()), "", table, "", conclusion)


def _method(estimate: EstimateRecord) -> str:
    # all footprints have the method and the error bounds of the first
    of_gpus = [footprint for gpu in estimate.gpus for footprint in gpu.footprints]
    footprint = (of_gpus or estimate.description.footprints)[0]
    error = f"{footprint.relative_error:.0%} of the measured peak"
    if footprint.absolute_error_bytes:
        error += (
            f" (or {format_bytes(footprint.absolute_error_bytes)}, if that is more)"
        )
    return (
        f"{footprint.method}; {WITHIN_ERROR:.0%} of such estimates are within {error}"
    )


def _memory_table(estimate: EstimateRecord) -> Table:
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
                table.add_row(
                    f"  {label}", *(format_bytes(part[name]) for part in parts)
                )
        totals = [format_bytes(sum(part.values())) for part in parts]
        table.add_row("  total", *totals, style="bold", end_section=True)
    verdicts = []
    for row in estimate.rows:
        # "perhaps" if only an upper bound exceeds a limit
        may_fit = estimate.limits.allow(row.device_bytes, row.host_bytes)
        verdicts.append("yes" if row.fits else "perhaps" if may_fit else "no")
    table.add_row("expected to fit", *verdicts, style="bold")
    return table


def _gpu_table(estimate: EstimateRecord) -> Table:
    table = _grid(padding=2)
    table.add_column("GPU")
    for name in ("memory", "a program gets", "largest batch", "takes", "share"):
        table.add_column(name, justify="right")
    for gpu in estimate.gpus:
        answer = ("none fits" if gpu.footprints else "unknown", NONE, NONE)
        for footprint in gpu.footprints:
            if footprint.batch_size == gpu.largest_batch_size:
                taken = footprint.device_bytes
                share = f"{taken / gpu.usable_bytes:.0%}"
                answer = (f"{footprint.batch_size:,}", format_bytes(taken), share)
        memory = format_bytes(gpu.total_bytes)
        table.add_row(gpu.gpu, memory, format_bytes(gpu.usable_bytes), *answer)
    return table
