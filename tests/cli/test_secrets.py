"""What a tuning file takes from the environment is in nothing that autofit writes, prints or passes as an argument."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
AUTOFIT = str(Path(sys.executable).parent / "autofit")
TOKEN, PASSWORD, PIN = "hf-3c1f77secret", "pa$$w0rd", "90817263"
WORKLOAD = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.workloads import Cases, build_model

def build(token, urls):
    assert token == {TOKEN!r} and urls == ["https://me:{TOKEN}@host/data", "plain"]
    print("logged in with", token)
    return build_model()

class Data(Cases):
    def __init__(self, batch_size, pin, fails=False, **kwargs):
        assert pin == {PIN} and type(pin) is int
        super().__init__(batch_size, **kwargs)
        self.pin, self.fails = pin, fails

    def __getitem__(self, index):
        if self.fails:
            raise ConnectionError(f"403 for pin {{self.pin}} of https://me:{TOKEN}@host/data")
        return super().__getitem__(index)
"""
TUNE = """
build_model: jobs.py:build
model_kwargs: {token: "${TOKEN}", urls: ["https://me:${TOKEN}@host/data", plain]}
data: jobs.py:Data
data_kwargs:
  pin: ${PIN}
  fails: ${FAILS:-false}
  seconds: 0.02
  length: 40
space: {batch_size: [32], workers: [1], max_queue_size: [4], use_multiprocessing: [false]}
max_trials: 1
max_seconds: 60
storage: ${STORAGE:-trials.db}
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "jobs.py").write_text(WORKLOAD)
    (tmp_path / "tune.yaml").write_text(TUNE)
    (tmp_path / "sweep.yaml").write_text(TUNE + "matrix:\n  model_kwargs.token: ['${TOKEN}']\n")
    (tmp_path / "tmp").mkdir()
    return tmp_path


@pytest.fixture
def autofit(project):
    """Run the command; returns its status and all that it wrote, printed, or gave its processes as arguments."""

    def run(*arguments, **variables):
        environment = {**os.environ, "TOKEN": TOKEN, "PIN": PIN, "TMPDIR": str(project / "tmp"), **variables}
        process = subprocess.Popen(
            [AUTOFIT, *arguments], cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        seen = []
        while process.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                seen += [" ".join(one.cmdline()) for one in psutil.Process(process.pid).children(recursive=True)]
            time.sleep(0.5)
        printed = process.stdout.read().decode()
        process.stdout.close()
        made = [path for path in project.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]
        return (
            process.returncode,
            printed,
            "\n".join([printed, *seen, *(path.read_bytes().decode("latin-1") for path in made)]),
        )

    return run


@pytest.mark.slow
def test_values_of_the_environment_are_shown_nowhere(autofit):
    status, printed, all_of_it = autofit("tune", "tune.yaml", "--output", "result.json")
    assert status == 0, printed
    assert "build(token=os.environ['TOKEN']" in printed
    assert "pin=int(os.environ['PIN'])" in printed
    for command in (["report", "result.json"], ["check", "tune.yaml"], ["kwargs", "result.json"]):
        status, printed, more = autofit(*command)
        assert status == 0, printed
        all_of_it += more
    assert "TOKEN" in all_of_it
    assert TOKEN not in all_of_it
    assert PIN not in all_of_it


def test_values_of_the_environment_are_not_in_the_users_own_errors(autofit):
    status, printed, all_of_it = autofit("sweep", "sweep.yaml", "--output", "sweep.json", FAILS="true")
    assert status == 1
    assert "ConnectionError: 403 for pin ${PIN} of https://me:${TOKEN}@host/data" in printed
    assert TOKEN not in all_of_it
    assert PIN not in all_of_it


def test_the_password_of_a_storage_is_shown_nowhere(autofit):
    url = f"other://me:{PASSWORD}@127.0.0.1:1/trials"
    status, printed, all_of_it = autofit("tune", "tune.yaml", STORAGE=url)
    assert status != 0
    assert "other://me:***@127.0.0.1" in printed
    assert PASSWORD not in all_of_it
