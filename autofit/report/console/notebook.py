"""Progress in a notebook: one output that is updated in place."""

from __future__ import annotations

import io
import time

from rich.console import RenderableType

from autofit.report.console.terminal import Terminal

_WIDTH = 110  # characters; a narrower output cell scrolls sideways
_MIN_SECONDS = 0.5  # between two drawings, because each takes CPU time from the trials
_FORMAT = '<pre style="font-family: monospace; line-height: 1.35; margin: 0">{code}</pre>'


class NotebookView:
    """An output of the running cell; needs IPython."""

    def __init__(self) -> None:
        from IPython.display import HTML, display  # installed with every notebook, not with autofit

        self._html, self._drawn = HTML, 0.0
        self._handle = display(HTML(""), display_id=True)

    def draw(self, drawing: RenderableType, *, at_once: bool) -> None:
        """Replace the output; unless `at_once`, only if the last drawing is old enough."""
        now = time.monotonic()
        if at_once or now - self._drawn >= _MIN_SECONDS:
            self._drawn = now
            console = Terminal(record=True, file=io.StringIO(), width=_WIDTH, force_jupyter=False, force_terminal=True)
            console.print(drawing)
            self._handle.update(self._html(console.export_html(inline_styles=True, code_format=_FORMAT)))
