"""What a tuning file takes from environment variables reaches the user's functions, and is shown as
the file has it.
"""

from tests.commands import AUTOFIT, ROOT, run

TOKEN = "hf-3c1f77secret"
PIN = "90817263"
WORKLOAD = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.workloads import Cases, build_model

def build(urls):
    assert urls == ["https://me:{TOKEN}@host/data", "plain"]
    return build_model()

class Data(Cases):
    def __init__(self, batch_size, token, pin, **kwargs):
        assert (token, pin) == ({TOKEN!r}, {PIN}), "not the values"
        super().__init__(batch_size, **kwargs)
"""
TUNE = """
build_model: jobs.py:build
model_kwargs: {urls: ["https://me:${TOKEN}@host/data", plain]}
data: jobs.py:Data
data_kwargs:
  token: ${TOKEN}
  pin: ${PIN}
  seconds: ${SECONDS:-0.02}
  length: 40
space: {batch_size: [32], workers: [1], max_queue_size: [4], use_multiprocessing: [false]}
max_trials: 1
storage: trials.db
"""


def test_arguments_are_shown_as_written_in_a_tune_and_a_sweep(tmp_path):
    (tmp_path / "jobs.py").write_text(WORKLOAD)
    (tmp_path / "tune.yaml").write_text(TUNE)
    (tmp_path / "sweep.yaml").write_text(
        TUNE + "matrix:\n  data_kwargs.token: ['${TOKEN}']\n"
    )
    (tmp_path / "tmp").mkdir()
    variables = {"TOKEN": TOKEN, "PIN": PIN, "TMPDIR": str(tmp_path / "tmp")}
    printed = ""
    results = ("report result.json", "report sweep.json", "show result.json")
    for command in (
        "tune tune.yaml --output result.json",
        "sweep sweep.yaml",
        *results,
        "check sweep.yaml",
    ):
        done = run(AUTOFIT, *command.split(), folder=tmp_path, **variables)
        assert done.returncode == 0, done.stderr
        printed += done.stdout + done.stderr
    for text in (
        "build(urls=['https://me:${TOKEN}@host/data', 'plain'])",
        "token='${TOKEN}'",
        "pin='${PIN}'",
    ):
        assert text in printed
    made = [
        path
        for path in tmp_path.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    ]
    for text in (printed, *(path.read_bytes().decode("latin-1") for path in made)):
        assert TOKEN not in text
        assert PIN not in text
