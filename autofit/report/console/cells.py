"""The progress of cells that are tuned at the same time: a live table on a terminal, one line per event elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from autofit.records.events import Notice
from autofit.records.units import counted, format_seconds
from autofit.report.console.progress import Progress

_REFRESH_PER_SECOND = 2  # drawing takes CPU time from the trials
_OTHER_LINES = 4  # of the screen: the heading, the count of hidden cells, the cursor and an empty line


@dataclass
class _Row:
    """A running cell."""

    label: str
    where: str
    doing: str
    began: float


class CellsProgress:
    """Shows where each running cell is tuned and what its tune is doing; prints a line for each cell that ends.

    Args:
        progress: the display to show cells on; nothing is shown if it is quiet.
        count: the number of cells of the sweep.
    """

    def __init__(self, progress: Progress, count: int) -> None:
        self._progress, self._count, self._ended = progress, count, 0
        self._rows: dict[int, _Row] = {}
        self._live: Live | None = None

    def __enter__(self) -> CellsProgress:
        console = self._progress.console
        if console.is_terminal and not console.is_jupyter and not self._progress.is_quiet:
            self._live = Live(
                console=console, get_renderable=self._draw, refresh_per_second=_REFRESH_PER_SECOND, transient=True
            )
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def doing(self, index: int, label: str, where: str, doing: str) -> None:
        """Show what a cell is doing and where; it begins if `doing` is empty."""
        begins = not doing or index not in self._rows
        if begins:
            self._rows[index] = _Row(label, where, doing or "beginning", time.monotonic())
            if self._live is None:
                self._progress.show(Notice(f"{label}: begins on {where}"))
        self._rows[index].where = where
        self._rows[index].doing = doing or "beginning"

    def ended(self, index: int, label: str, outcome: str) -> None:
        """Show that a cell has ended."""
        self._ended += 1
        row = self._rows.pop(index, None)
        where = f" ({row.where}, {format_seconds(time.monotonic() - row.began)})" if row else ""
        self._progress.show(Notice(f"{label}: {outcome}{where}"))

    def _draw(self) -> RenderableType:
        waiting = self._count - self._ended - len(self._rows)
        heading = f"{self._ended} of {counted(self._count, 'cell')} done, {len(self._rows)} under way, {waiting} waiting"
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, expand=True)
        third = self._progress.console.width // 3
        table.add_column("cell", no_wrap=True, max_width=third)
        table.add_column("on", no_wrap=True, max_width=third // 2)
        table.add_column("for", no_wrap=True, justify="right")
        table.add_column("doing", no_wrap=True, ratio=1)
        room = max(1, self._progress.console.height - _OTHER_LINES)
        rows = list(self._rows.values())
        for row in rows[:room]:
            table.add_row(row.label, row.where, format_seconds(time.monotonic() - row.began), row.doing)
        more = [Text(f"… and {counted(len(rows) - room, 'more cell')}", style="dim")] if len(rows) > room else []
        return Group(Text(heading, style="bold"), *([table] if rows else []), *more)
