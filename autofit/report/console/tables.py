"""Results on a console: tables of trials, of sweep cells and of an estimate, and the summary of a tune."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from autofit.records.description import XLA, EstimateRecord
from autofit.records.result import TuneRecord
from autofit.records.states import Outcome
from autofit.records.sweep import Cell, CellOutcome, SweepRecord
from autofit.records.trial import Limits, Trial
from autofit.records.units import counted, format_bytes, format_rate, format_seconds
from autofit.report.choice import answers, figures, sentences
from autofit.report.columns import Column, Field, Output, cell_columns, trial_columns, trial_rows
from autofit.report.snippet import render
from autofit.report.wording import NONE, cell_label, estimate_facts, limits_in_words, part_name

_BAR_CHARACTERS = 6
_MOST_ROWS = 500  # rich takes a minute for ten thousand rows, and nobody reads them
_TRIAL_STYLES = {Outcome.OK: "green", Outcome.ERROR: "bold red", Outcome.TIMEOUT: "magenta", Outcome.CRASHED: "magenta"}
_CELL_STYLES = {"ok": "green", "does not fit": "yellow", "failed": "bold red", "waiting": "dim"}
_LEFT = ("trial", "outcome", "device_peak_bytes", "host_peak_bytes", "config", "bottleneck", "host")
_LONG = ("config", "gain", "host")  # columns whose text may wrap
_BRIEF = ("epoch", "devices", "outputs", "not tuned", "updates", "search")  # subjects of a summary without advice


def trial_table(trials: Sequence[Trial], limits: Limits | None, *, skip: int = 0, no_wrap: bool = False) -> Table:
    """Return a table with a row for each trial after the first `skip`; bars show the peaks relative to the limits.

    If `no_wrap` is true, each trial takes one line, however narrow the console is.
    """
    rows = trial_rows(trials, limits)
    columns = trial_columns(Output.CONSOLE, rows)
    table = _grid()
    for column in columns:
        table.add_column(column.label, justify="left" if column.name in _LEFT else "right", no_wrap=no_wrap)
    for row in rows[skip:]:
        style = _TRIAL_STYLES.get(row.trial.measurement.outcome, "yellow")
        table.add_row(*(Text(_with_bar(c.field(row)), style if c.name == "outcome" else "") for c in columns))
    return table


def _grid(padding: int = 1) -> Table:
    return Table(box=None, padding=(0, padding, 0, 0), pad_edge=False)


def _with_bar(field: Field) -> str:
    if field.share is None:
        return field.text
    full = min(_BAR_CHARACTERS, round(field.share * _BAR_CHARACTERS))
    return f"{'█' * full}{'░' * (_BAR_CHARACTERS - full)} {field.share:.0%}"


def sweep_table(record: SweepRecord) -> Group:
    """Return a table with a row for each cell (values, fastest config, rate, memory, bottleneck), and list the failures."""
    table, columns = _grid(), cell_columns(record, Output.CONSOLE)
    for column in columns:
        is_left, is_long = column.name in (*record.axes, *_LEFT), column.name in (*record.axes, *_LONG)
        table.add_column(column.label, justify="left" if is_left else "right", no_wrap=not is_long, overflow="fold")
    for cell in record.cells[:_MOST_ROWS]:
        table.add_row(*_cell_texts(cell, columns))
    problems = [(cell, cell.problem_line) for cell in record.cells if cell.problem]
    failures = [Text(f"\n{cell_label(cell.values)}: {text}") for cell, text in problems[:_MOST_ROWS]]
    outcomes = [cell.outcome for cell in record.cells]
    tally = [f"{outcomes.count(outcome)} {outcome}" for outcome in CellOutcome if outcome in outcomes]
    total = f"\n{counted(len(record.cells), 'cell')}: {', '.join(tally)}; {format_seconds(record.seconds)} in this run"
    more = len(record.cells) - _MOST_ROWS
    cut = [Text(f"… and {counted(more, 'more cell')}, in the CSV file", style="dim")] if more > 0 else []
    return Group(table, *cut, *failures, Text(total))


def _cell_texts(cell: Cell, columns: Sequence[Column[Cell]]) -> list[Text]:
    """Return the fields of a cell; if it has no result, its outcome replaces the config."""
    if cell.result is not None:
        return [Text(column.field(cell).text) for column in columns]
    outcome = Text(cell.outcome, style=_CELL_STYLES[cell.outcome])
    return [outcome if c.name == "config" else Text(c.field(cell).text.removeprefix(NONE)) for c in columns]


def labelled(rows: Iterable[tuple[str, str]]) -> Table:
    """Return a grid of texts, each after its label."""
    grid = Table.grid(padding=(0, 2))
    for label, text in rows:
        grid.add_row(Text(label, style="bold"), Text(text))
    return grid


def summary(record: TuneRecord, *, with_advice: bool = False) -> Group:
    """Return the key figures of a result and the lines to paste; `with_advice` adds the sentences of advice."""
    texts = sentences(record)
    texts.pop("learning rate", None)  # the sources of the factor that the answers name: for the page
    texts["search"] += f"; {counted(len(record.searched), 'trial')}, {format_seconds(record.seconds)} in all"
    rows = [
        ("baseline", _baseline(record)),
        *((figure.label, str(figure)) for figure in figures(record)),
        *((subject, text) for subject, text in texts.items() if with_advice or subject in _BRIEF),
    ]
    blocks: list[Any] = [labelled(rows)]
    shown = answers(record)
    for answer in shown:
        name = "result.fit_kwargs" if answer is record.fastest else "result.same_batch.fit_kwargs"
        which = "it" if len(shown) == 1 else "the fastest" if answer is record.fastest else "your batch size"
        where = f" ({name} and so on)" if len(shown) > 1 else ""
        code = Text(render(record, answer), no_wrap=True, overflow="ignore")
        blocks += [f"\nTo {record.call_source.verb} with {which}{where}:\n", code]
    return Group(*blocks)


def _baseline(record: TuneRecord) -> str:
    """Return the baseline, with the median rate of its confirming runs."""
    baseline = record.speedup.baseline
    runs = (run.measurement.samples_per_second for run in record.runs if run.config == baseline)
    rates = [rate for rate in runs if rate]
    return f"{baseline}: {format_rate(statistics.median(rates))} samples/s" if rates else str(baseline)


def summarise(record: TuneRecord, console: Console) -> None:
    """Print the summary of a result, with advice."""
    console.print()
    console.print(summary(record, with_advice=True), crop=False)


def estimate_table(estimate: EstimateRecord) -> Group:
    """Show the parts and totals of device and host memory for each batch size, and the largest batch size that fits."""
    d = estimate.description
    facts = {
        "model": f"{d.parameter_count:,} parameters, {format_bytes(d.sample_bytes)} per sample, {d.input_kind}",
        "machine": f"{estimate.device}, {counted(estimate.machine.cores, 'core')}",
        "limits": limits_in_words(estimate.limits),
        **estimate_facts(estimate),
    }
    if estimate.gpus:
        facts = {name: facts[name] for name in ("model", "method")}
        return Group(labelled(facts.items()), "", _gpu_table(estimate), "", *_gpu_notes(estimate))
    table = _grid(padding=2)
    table.add_column("batch size")
    for row in estimate.rows:
        table.add_column(f"{row.batch_size}", justify="right")
    _add_parts(table, "DEVICE", [row.device_bytes_by_part for row in estimate.rows])
    _add_parts(table, "HOST", [row.host_bytes_by_part for row in estimate.rows])
    verdicts = [  # "perhaps" if only an upper bound exceeds a limit
        "yes" if row.fits else "perhaps" if estimate.limits.allow(row.device_bytes, row.host_bytes) else "no"
        for row in estimate.rows
    ]
    table.add_row("expected to fit", *verdicts, style="bold")
    largest = estimate.largest_batch_size
    conclusion = (
        "Not even a batch size of 1 is expected to fit."
        if largest is None
        else f"Largest batch size whose upper bounds are within the limits: {largest}."
    )
    return Group(labelled(facts.items()), "", table, "", conclusion)


def _gpu_table(estimate: EstimateRecord) -> Table:
    table = _grid(padding=2)
    for name in ("GPU", "memory", "a program gets", "largest batch", "takes", "share"):
        table.add_column(name, justify="left" if name == "GPU" else "right")
    for gpu in estimate.gpus:
        taken = next((each.device_bytes for each in gpu.footprints if each.batch_size == gpu.largest_batch_size), None)
        answer = ("none fits" if gpu.footprints else "unknown", NONE, NONE)
        if taken is not None:
            answer = (f"{gpu.largest_batch_size:,}", format_bytes(taken), f"{taken / gpu.usable_bytes:.0%}")
        table.add_row(gpu.gpu, format_bytes(gpu.total_bytes), format_bytes(gpu.usable_bytes), *answer)
    return table


def _gpu_notes(estimate: EstimateRecord) -> Iterator[str]:
    """Yield sentences about GPUs for which something differs, and about what the estimate lacks."""
    for gpu in estimate.gpus:
        if gpu.problem:
            yield f"{gpu.gpu}: {gpu.problem}"
        if gpu.recomputes_from:
            where, what = f"{gpu.gpu}: from a batch of about {gpu.recomputes_from:,} on", "instead of keeping them"
            yield f"{where}, XLA computes values again {what}: steps are slower, and larger batches may fit"
    count = estimate.description.sample_count
    if count is not None and any((gpu.largest_batch_size or 0) > 0.9 * count for gpu in estimate.gpus):
        yield f"The data has {count:,} samples, so no larger batch was tried."
    if estimate.footprint.method.startswith(XLA):
        lacking = "Not included: workspaces of cuDNN, and what the first step tries"
        yield f"{lacking}. The largest batch leaves room for the error stated above."


def estimate_as_json(estimate: EstimateRecord) -> str:
    """Return the estimate as JSON text; sizes are in bytes."""
    rows = [{**asdict(row), "device_bytes": row.device_bytes, "host_bytes": row.host_bytes} for row in estimate.rows]
    document = {
        "method": estimate.footprint.method,
        "relative_error": estimate.footprint.relative_error,
        "absolute_error_bytes": estimate.footprint.absolute_error_bytes,
        "device": estimate.device,
        "limits": asdict(estimate.limits),
        "config": estimate.config.values(),
        "largest_batch_size": estimate.largest_batch_size,
        "batch_sizes": rows,
    }
    if estimate.gpus:
        document = {name: document[name] for name in ("method", "relative_error", "absolute_error_bytes")}
        document["gpus"] = [{**asdict(gpu), "recomputes_from": gpu.recomputes_from} for gpu in estimate.gpus]
    return json.dumps(document, indent=2)


def _add_parts(table: Table, title: str, parts: list[Mapping[str, int]]) -> None:
    table.add_row(Text(title, style="bold"))
    for name in parts[0]:
        if any(part[name] for part in parts):
            table.add_row(f"  {part_name(name)}", *(format_bytes(part[name]) for part in parts))
    table.add_row("  total", *(format_bytes(sum(part.values())) for part in parts), style="bold", end_section=True)
