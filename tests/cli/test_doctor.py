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
    whole, wrong = start(), start("--json", KERAS_BACKEND="openvino")
    text, errors = whole.communicate(timeout=800)
    told, _ = wrong.communicate(timeout=800)

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
@pytest.mark.quiet
def test_verify_cannot_measure_beside_processes_that_use_every_core():
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        ran = subprocess.run(
            [DOCTOR[0], "verify"],
            env={**os.environ, "COLUMNS": "1000"},
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
    finally:
        for process in spinning:
            process.kill()
            process.wait()
    assert ran.returncode == 3, ran.stdout + ran.stderr
    line, remedy, _, last = ran.stdout.splitlines()
    assert line.startswith("warning  load             cannot measure now: other work uses ")
    assert "End that work" in remedy
    assert last == "0 problems, 1 warning."
