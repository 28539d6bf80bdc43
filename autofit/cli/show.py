"""`autofit show`."""

from __future__ import annotations

from autofit.cli.exit import reporting_errors
from autofit.cli.options import ResultOrSweep
from autofit.records.sweep import SweepRecord
from autofit.report.console.summary import print_trials, summarise
from autofit.report.console.tables import print_sweep
from autofit.report.console.terminal import Terminal
from autofit.storage import result_files, sweep_files


def show(result: ResultOrSweep) -> None:
    """Show a result (every trial, the choice and the lines to paste) or the table of a sweep."""
    console = Terminal()
    with reporting_errors():
        record = sweep_files.load(result)
        if isinstance(record, SweepRecord):
            print_sweep(record, console)
            return
        answer = result_files.answered(record, result)
        print_trials(answer, console)
        summarise(answer, console)
