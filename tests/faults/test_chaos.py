"""A few runs of `chaos.py`, each with another fault; hundreds of them are for a night."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.quiet]


@pytest.mark.skipif(sys.platform != "linux", reason="the faults are those of Linux")
def test_nothing_is_lost_left_or_wrong_after_a_fault():
    command = [sys.executable, Path(__file__).with_name("chaos.py"), "--count", "2"]
    command += ["--faults", "driver-kill,trial-kill,driver-term,server-kill"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    runs = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(runs) == 2
    assert any(run["faults"] for run in runs)
