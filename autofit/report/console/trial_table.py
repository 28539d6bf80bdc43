"""The table of trials on a console."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from autofit.records.states import Outcome
from autofit.records.trial import Limits, Trial
from autofit.report.columns import TRIAL_COLUMNS, Field, Output, columns_of, trial_rows

_BAR_CHARACTERS = 6
_STYLES = {Outcome.OK: "green", Outcome.ERROR: "bold red", Outcome.TIMEOUT: "magenta", Outcome.CRASHED: "magenta"}
_LEFT = ("trial", "outcome", "device_peak_bytes", "host_peak_bytes")  # columns that are aligned to the left


def trial_table(trials: Sequence[Trial], limits: Limits | None, *, skip: int = 0, no_wrap: bool = False) -> Table:
    """A table with a row for each trial.

    Args:
        trials: the trials, in order.
        limits: the memory limits that the bars relate to.
        skip: rows left out at the top.
        no_wrap: whether each trial takes one line, however narrow the console is.
    """
    rows = trial_rows(trials, limits)
    columns = columns_of(TRIAL_COLUMNS, Output.CONSOLE, rows)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for column in columns:
        table.add_column(column.label, justify="left" if column.name in _LEFT else "right", no_wrap=no_wrap)
    for row in rows[skip:]:
        outcome_style = _STYLES.get(row.trial.measurement.outcome, "yellow")
        table.add_row(
            *(Text(_text(column.field(row)), outcome_style if column.name == "outcome" else "") for column in columns)
        )
    return table


def _text(field: Field) -> str:
    if field.share is None:
        return field.text
    full = min(_BAR_CHARACTERS, round(field.share * _BAR_CHARACTERS))
    return f"{'█' * full}{'░' * (_BAR_CHARACTERS - full)} {field.share:.0%}"
