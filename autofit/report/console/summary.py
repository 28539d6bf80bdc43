"""A result in a screenful: the choice, its key figures, and the lines to paste."""

from __future__ import annotations

from rich.console import Console, Group
from rich.text import Text

from autofit.records.result import TuneRecord
from autofit.records.units import counted, format_seconds
from autofit.report.choice import figures, sentences
from autofit.report.console.tables import labelled, trial_table
from autofit.report.snippet import render

_BRIEF = ("devices", "not tuned", "why", "updates", "search")  # subjects that are shown without advice


def summary(record: TuneRecord, *, with_advice: bool = False) -> Group:
    """The key figures of a result and the lines to paste.

    Args:
        record: the result.
        with_advice: whether to add sentences on the learning rate, noise and the like.
    """
    texts = sentences(record)
    texts["search"] += f"; {counted(len(record.searched), 'trial')}, {format_seconds(record.seconds)} in all"
    rows = [
        ("chosen", str(record.config)),
        *((figure.label, str(figure)) for figure in figures(record)),
        *((subject, text) for subject, text in texts.items() if with_advice or subject in _BRIEF),
    ]
    return Group(labelled(rows), "\nTo train with it:\n", Text(render(record), no_wrap=True, overflow="ignore"))


def summarise(record: TuneRecord, console: Console) -> None:
    """Print the summary of a result, with advice."""
    console.print()
    console.print(summary(record, with_advice=True), crop=False)


def print_trials(record: TuneRecord, console: Console) -> None:
    """Print the table of all trials of the search, and of the later runs that failed."""
    failed = [trial for trial in record.trials if trial not in record.searched]
    console.print(trial_table([*record.searched, *failed], record.limits))
