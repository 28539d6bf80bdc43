"""A few runs of `chaos.py`; hundreds of them run before a release."""

import sys
from pathlib import Path

import pytest

from tests.commands import python


@pytest.mark.skipif(sys.platform != "linux", reason="the faults are those of Linux")
def test_nothing_is_lost_left_or_wrong_after_a_fault():
    arguments = [
        "--tunes",
        "2",
        "--others",
        "1",
        "--faults",
        "trial-kill,worker-kill,full-storage",
    ]
    python(Path(__file__).with_name("chaos.py"), *arguments)
