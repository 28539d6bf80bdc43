"""Outputs for people: a terminal, and plain text."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from autofit.records.units import printable

_PLAIN_WIDTH = 80  # characters: the narrowest common terminal


class Terminal(Console):
    """A console that shows control characters in content as �, so that content cannot control the terminal."""

    def __init__(self, **options: Any) -> None:
        # in a notebook, lines are text in one output: rich would make an output of each, and draws tables again and again
        # only where ipywidgets is installed. The standard output of a kernel says that it is a terminal, which it is not
        self.is_in_notebook = Console().is_jupyter
        plain = {"force_jupyter": False, "force_terminal": False} if self.is_in_notebook else {}
        super().__init__(**{"highlight": False, **plain, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as `Console.render` does, and replace control characters; all content passes through this method."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def plain_text(drawing: RenderableType) -> str:
    """Return a drawing as text of 80 columns without colour; `print` and the interpreter show a result this way."""
    console = Terminal(width=_PLAIN_WIDTH, file=io.StringIO(), force_terminal=False, color_system=None)
    with console.capture() as captured:
        console.print(drawing, crop=False)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
