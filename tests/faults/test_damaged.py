"""A few of the damages of `damaged.py` and `damaged_storage.py`, on results and databases of made-up trials."""

import subprocess
import sys
from pathlib import Path

import pytest

from autofit.errors import NothingFitsError
from autofit.storage import result_files
from autofit.tuning.engine import tune
from tests.fakes import MIB, FakeLauncher, collect, make_request

pytestmark = pytest.mark.slow


def made(folder, **limits):
    try:
        return collect(tune, make_request(folder, **limits), FakeLauncher())[1]
    except NothingFitsError as error:
        return error.tune


@pytest.mark.parametrize("limits", [{"device_bytes": 150 * MIB}, {"host_bytes": 50 * MIB}])
@pytest.mark.parametrize(("commands", "count"), [("show,kwargs", 40), ("report", 5)])
def test_a_damaged_file_is_shown_or_refused_in_a_sentence(tmp_path, limits, commands, count):
    file = tmp_path / "result.json"
    result_files.save(made(tmp_path, **limits), file)
    command = [sys.executable, Path(__file__).with_name("damaged.py"), file, "--count", str(count), "--commands", commands]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout[-3000:]


@pytest.mark.parametrize(("commands", "count"), [("show,kwargs", 40), ("report", 5)])
def test_a_damaged_sweep_is_shown_or_refused_in_a_sentence(commands, count):
    file = Path(__file__).parents[1] / "data" / "pinned" / "sweep.json"
    command = [sys.executable, Path(__file__).with_name("damaged.py"), file, "--count", str(count), "--commands", commands]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout[-3000:]


def test_a_damaged_database_ends_in_a_sentence():
    command = [sys.executable, Path(__file__).with_name("damaged_storage.py"), "--count", "10"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
