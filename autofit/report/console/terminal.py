"""The console on which everything is printed: content cannot control the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from autofit.records.units import printable


class Terminal(Console):
    """A console that shows control characters of content as �: results and storages of others may hold any.

    Args:
        options: of `rich.console.Console`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"highlight": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """See `Console.render`, through which all content goes."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
