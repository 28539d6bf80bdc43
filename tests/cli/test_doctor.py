"""`autofit doctor` as a user runs it, on this very machine: TensorFlow is imported and a trial forked for real."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DOCTOR = [str(Path(sys.executable).parent / "autofit"), "doctor"]


def start(*arguments, **variables):
    environment = {**os.environ, "COLUMNS": "80", **variables}
    return subprocess.Popen(
        [*DOCTOR, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_doctor_says_what_it_sees_and_its_exit_code_says_whether_there_is_a_problem():
    whole, wrong = start(), start("--json", KERAS_BACKEND="openvino", TF_USE_LEGACY_KERAS="0")
    text, errors = whole.communicate(timeout=280)
    told, _ = wrong.communicate(timeout=280)

    lines = text.splitlines()
    problems = [line for line in lines if line.startswith("problem ")]
    assert whole.returncode == (1 if problems else 0), text
    assert max(map(len, lines)) <= 80
    assert errors == ""
    assert any(line.startswith("ok       trial ") for line in lines), text
    assert lines[-1].endswith((" warning.", " warnings."))

    found = json.loads(told)
    assert wrong.returncode == 1
    assert found["problems"] >= 1
    statuses = {finding["subject"]: finding["status"] for finding in found["findings"]}
    assert statuses["keras backend"] == "problem", told
    assert "trial" not in statuses


@pytest.mark.slow
def test_verify_measures_what_it_is_asked_for(tmp_path):
    command = [DOCTOR[0], "verify", "--only", "kill", "--only", "two at once"]
    environment = {**os.environ, "COLUMNS": "80", "XDG_DATA_HOME": str(tmp_path)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    killed, second, _, result = ran.stdout.splitlines()
    assert killed.split() == ["ok", "kill", "recognised:", "a", "process", "that", "is", "killed"]
    assert second.endswith("a second measurement waits for the first")
    assert result.startswith("All figures right; ")
    assert not list(tmp_path.rglob("verify.txt"))  # a part is no result for reports
