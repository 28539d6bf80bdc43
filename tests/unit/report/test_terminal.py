"""What results of others and errors hold controls neither the terminal nor the way of text."""

import io
from dataclasses import replace

import pytest
import typer

from autofit.api.result import Result
from autofit.cli.common import reporting_errors
from autofit.errors import StorageError
from autofit.report.console.tables import Terminal, summarise, trial_table
from autofit.report.html import page

EVIL = "\x1b]0;title\x07\x1b[31mred\x9b2J\u202etxt.exe\ud800"
CONTROLS = ("\x1b", "\x07", "\x9b", "\u202e", "\ud800")


def screen(draw):
    terminal = Terminal(width=80, file=io.StringIO())
    draw(terminal)
    return terminal.file.getvalue()


def test_nothing_of_a_result_or_an_error_reaches_terminal_or_page(record, capsys):
    trials = tuple(replace(trial, why=EVIL) for trial in record.trials)
    call_source = replace(record.call_source, model=f"f('{EVIL}')")
    evil = replace(
        record, trials=trials, device=EVIL, stop_reason=EVIL, call_source=call_source
    )
    shown = [
        screen(lambda terminal: summarise(evil, terminal)),
        screen(lambda terminal: terminal.print(trial_table(evil.trials, evil.limits))),
        str(Result(**vars(evil))),
        page.render(evil).partition("<script")[0],
    ]
    with pytest.raises(typer.Exit), reporting_errors():
        raise StorageError(EVIL)
    shown += capsys.readouterr()
    assert not any(control in text for control in CONTROLS for text in shown)
