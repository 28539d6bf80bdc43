"""`autofit doctor` as a user runs it, on this very machine: TensorFlow is imported and a trial
forked for real.
"""

import json
import os
import subprocess
import sys

import pytest

from tests.commands import AUTOFIT, run
from tests.installed import needs


@pytest.mark.parametrize("backend", ["tensorflow", "openvino"])
def test_doctor_runs_a_trial_and_its_exit_code_says_whether_there_is_a_problem(backend):
    if backend == "tensorflow":
        needs(backend)
    done = run(AUTOFIT, "doctor", "--json", KERAS_BACKEND=backend)
    findings = json.loads(done.stdout)["findings"]
    statuses = {finding["subject"]: finding["status"] for finding in findings}
    assert done.returncode == (1 if "problem" in statuses.values() else 0), done.stdout
    assert statuses["keras backend"] == (
        "ok" if backend == "tensorflow" else "problem"
    ), done.stdout
    assert statuses.get("trial") == ("ok" if backend == "tensorflow" else None), (
        done.stdout
    )


def test_verify_cannot_measure_while_other_processes_use_every_core():
    spinning = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        assert run(AUTOFIT, "verify").returncode == 3
    finally:
        for process in spinning:
            process.kill()
            process.wait()
