"""The table of an estimate in a terminal."""

import io

from autofit.report.console.tables import estimate_table
from autofit.report.console.terminal import Terminal


def test_the_table_has_each_part_and_fits_the_terminal(estimate):
    output = io.StringIO()
    Terminal(file=output, width=80).print(estimate_table(estimate))
    lines = output.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    for row in estimate.rows:
        for part, size in (row.device_bytes_by_part | row.host_bytes_by_part).items():
            assert not size or any(part in line for line in lines), part
    (sizes,) = (line for line in lines if line.startswith("batch size"))
    assert sizes.split()[2:] == ["8", "32"]
