"""What `print` and the interpreter show of a result: the console's drawing as plain text."""

from __future__ import annotations

import io

from rich.console import RenderableType

from autofit.report.console.terminal import Terminal

WIDTH = 80  # characters: the narrowest terminal that is common


def plain_text(drawing: RenderableType) -> str:
    """A drawing as text of 80 columns, without colour."""
    console = Terminal(width=WIDTH, file=io.StringIO(), force_jupyter=False, force_terminal=False, color_system=None)
    with console.capture() as captured:
        console.print(drawing, crop=False)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
