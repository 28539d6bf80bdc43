"""A sweep, killed and resumed: no trial lost or run twice, and the table whole."""

import csv
import io
import signal
import subprocess

import pytest

from tests.cli.test_cli import AUTOFIT, WORKLOAD

SWEEP = (
    WORKLOAD + "Cases\n"
    "data_kwargs: {seconds: 0.01, length: 40}\nstorage: trials.db\nmax_trials: 1\nbaseline: {batch_size: 32}\n"
    "space: {batch_size: [32], workers: [1], max_queue_size: [4], use_multiprocessing: [false]}\n"
    "matrix: {model_kwargs.filters: [8], model_kwargs.fail: [false, true]}\n"
)


def start(folder, *arguments):
    return subprocess.Popen(
        [AUTOFIT, "sweep", "sweep.yaml", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  # no thread runs here
    )


@pytest.mark.slow
def test_a_sweep_that_is_killed_goes_on_where_it_was(tmp_path):
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    process = start(tmp_path)
    assert any(": ok, " in line for line in process.stdout)  # its only trial has ended; a confirming run takes seconds
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    ended = start(tmp_path)
    told = ended.communicate(timeout=800)[0]
    assert ended.returncode == 0, told
    assert "1 trial of an earlier run" in told
    assert told.count("baseline: batch 32") == 1
    rows = list(csv.DictReader(io.StringIO((tmp_path / "sweep.csv").read_text())))
    cells = [(row["model_kwargs.filters"], row["outcome"], row["trials"]) for row in rows]
    assert cells == [("8", "ok", "1"), ("8", "failed", "0")]
    assert "RuntimeError: the model cannot be built" in rows[1]["problem"]
