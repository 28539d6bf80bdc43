"""`autofit check`."""

from __future__ import annotations

import sys

from rich.console import Console

from autofit import api
from autofit.cli.exit import told
from autofit.cli.options import _File, _given, _Storage
from autofit.report import wording
from autofit.report.console.sweep import print_checked


def check(file: _File, storage: _Storage = None) -> None:
    """Check FILE: every key, every name in it, limits and device; functions are imported, none is called.

    Of a sweep every cell is checked.
    """
    sys.path.insert(0, "")
    console = Console(highlight=False)
    with told():
        cells = api.check_file(file, **_given(storage=storage))
        for number, (values, found) in enumerate(cells, 1):
            if values:
                console.print(f"cell {number} of {len(cells)}: {wording.cell_label(values)}", style="bold", markup=False)
            print_checked(found, console)
        console.print(f"\n{file} is in order; nothing was run", markup=False, soft_wrap=True)
