"""`autofit check`."""

from __future__ import annotations

from autofit import api
from autofit.cli.exit import reporting_errors
from autofit.cli.options import File, Storage, overrides
from autofit.report import wording
from autofit.report.console.tables import print_checked
from autofit.report.console.terminal import Terminal


def check(file: File, storage: Storage = None) -> None:
    """Check FILE, the functions it names, the limits and the device, without running anything.

    Imports your modules and calls none of their functions. Checks every cell of a sweep.
    """
    console = Terminal()
    with reporting_errors():
        cells = api.check_file(file, **overrides(storage=storage))
        for number, (values, checked) in enumerate(cells, 1):
            if values:
                console.print(f"cell {number} of {len(cells)}: {wording.cell_label(values)}", style="bold", markup=False)
            print_checked(checked, console)
        console.print(f"\n{file} is valid; nothing was run", markup=False, soft_wrap=True)
