"""What a notebook shows while a tune runs: one output that is drawn anew."""

from __future__ import annotations

import io
import time

from rich.console import Console, RenderableType

_WIDTH = 110  # characters; a cell's output scrolls sideways where it has less room
_LEAST_SECONDS = 0.5  # between two drawings: each takes time from what is being measured
_FORMAT = '<pre style="font-family: monospace; line-height: 1.35; margin: 0">{code}</pre>'


class NotebookView:
    """An output of the cell that runs now; needs IPython, which a notebook has."""

    def __init__(self) -> None:
        from IPython.display import HTML, display  # there wherever there is a notebook, and nowhere else

        self._html, self._drawn = HTML, 0.0
        self._handle = display(HTML(""), display_id=True)

    def draw(self, what: RenderableType, *, at_once: bool) -> None:
        """Show this in place of what was shown; not at once, only if the last drawing is a while ago."""
        now = time.monotonic()
        if at_once or now - self._drawn >= _LEAST_SECONDS:
            self._drawn = now
            console = Console(record=True, file=io.StringIO(), width=_WIDTH, force_jupyter=False, force_terminal=True)
            console.print(what)
            self._handle.update(self._html(console.export_html(inline_styles=True, code_format=_FORMAT)))
