"""A few of the damages of `damaged.py`, on results, a sweep and a database of made-up trials."""

import subprocess
import sys
from pathlib import Path

import pytest

from autofit.errors import NothingFitsError
from autofit.storage import result_files
from autofit.tuning.engine import tune
from tests.fakes import MIB, FakeLauncher, collect, make_request

pytestmark = pytest.mark.slow
SWEEP = Path(__file__).parents[1] / "data" / "pinned" / "sweep.json"


def made(folder, **limits):
    try:
        return collect(tune, make_request(folder, **limits), FakeLauncher())[1]
    except NothingFitsError as error:
        return error.tune


@pytest.mark.parametrize("what", [{"device_bytes": 150 * MIB}, {"host_bytes": 50 * MIB}, SWEEP, "--storage"])
def test_what_is_damaged_is_read_or_refused_in_a_sentence(tmp_path, what):
    if isinstance(what, dict):
        what, record = tmp_path / "result.json", made(tmp_path, **what)
        result_files.save(record, what)
    count = 10 if what == "--storage" else 40
    command = [sys.executable, Path(__file__).with_name("damaged.py"), what, "--count", str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout[-3000:]
