"""Outputs for people: a terminal, the output of a notebook cell, and plain text."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from autofit.records.units import printable

_PLAIN_WIDTH = 80  # characters: the narrowest common terminal
_NOTEBOOK_WIDTH = 110  # characters; a narrower output cell scrolls sideways
_MIN_SECONDS = 0.5  # between two drawings in a notebook, because each takes CPU time from the trials
_FORMAT = '<pre style="font-family: monospace; line-height: 1.35; margin: 0">{code}</pre>'


class Terminal(Console):
    """A console that shows control characters in content as �, so that content cannot control the terminal."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"highlight": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as `Console.render` does, and replace control characters; all content passes through this method."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


class NotebookView:
    """An output of the running notebook cell that is updated in place; needs IPython."""

    def __init__(self) -> None:
        from IPython.display import HTML, display  # notebooks install IPython; autofit does not

        self._html, self._drawn = HTML, 0.0
        self._handle = display(HTML(""), display_id=True)

    def draw(self, drawing: RenderableType, *, at_once: bool) -> None:
        """Replace the output if `at_once` is true or the last drawing is old enough; otherwise do nothing."""
        now = time.monotonic()
        if at_once or now - self._drawn >= _MIN_SECONDS:
            self._drawn = now
            console = Terminal(
                record=True, file=io.StringIO(), width=_NOTEBOOK_WIDTH, force_jupyter=False, force_terminal=True
            )
            console.print(drawing)
            self._handle.update(self._html(console.export_html(inline_styles=True, code_format=_FORMAT)))


def plain_text(drawing: RenderableType) -> str:
    """Return a drawing as text of 80 columns without colour; `print` and the interpreter show a result this way."""
    console = Terminal(width=_PLAIN_WIDTH, file=io.StringIO(), force_jupyter=False, force_terminal=False, color_system=None)
    with console.capture() as captured:
        console.print(drawing, crop=False)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
