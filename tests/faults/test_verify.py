"""`autofit verify` on this machine, and with three defects: each is found."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import autofit
from autofit.cli.verify import CHECKS
from tests.installed import needs

pytestmark = [pytest.mark.slow, pytest.mark.quiet]
PACKAGE = Path(autofit.__file__).parent


def verified(tmp_path, backend="tensorflow", folder=None):
    """The exit code and the findings of a run, each by its subject."""
    variables = {**os.environ, "KERAS_BACKEND": backend, "XDG_DATA_HOME": str(tmp_path)}
    if folder is not None:  # the processes of trials find this package first, too
        variables["PYTHONPATH"] = str(folder)
    command = [sys.executable, "-m", "autofit", "verify", "--json"]
    ran = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=800, check=False)
    assert ran.stdout, ran.stderr
    printed = json.loads(ran.stdout)
    return ran.returncode, {finding["subject"]: finding for finding in printed["findings"]}


def test_all_figures_are_right(tmp_path):
    code, findings = verified(tmp_path)
    assert code == 0, [finding for finding in findings.values() if finding["status"] == "problem"]
    assert set(findings) == set(CHECKS)


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_other_backends(tmp_path, backend):
    needs(backend)
    code, findings = verified(tmp_path, backend)
    assert code == 0, findings
    assert findings["device memory"]["detail"] == f"not shown: Keras on {backend} has no memory of its own on a CPU"


@pytest.mark.parametrize(
    ("module", "right", "wrong", "found"),
    [
        ("trial/worker/step_clock.py", "time.perf_counter()", "(1.1 * time.perf_counter())", ["input rate"]),
        ("machine/host.py", 'proportional=rollup["Pss"]', 'proportional=rollup["Rss"]', ["host memory"]),
        ("trial/watcher.py", "if self.last_bytes > self._limit:\n", "if self.last_bytes < 0:\n", ["host OOM"]),
        ("trial/worker/main.py", "if exhausted is not None:", "if False:", ["device memory"]),
    ],
    ids=["clock", "shared memory", "host OOM", "device memory"],
)
def test_a_defect_is_found(tmp_path, module, right, wrong, found):
    shutil.copytree(PACKAGE, tmp_path / "autofit", ignore=shutil.ignore_patterns("__pycache__"))
    source = tmp_path / "autofit" / module
    text = source.read_text()
    assert right in text
    source.write_text(text.replace(right, wrong))
    code, findings = verified(tmp_path, folder=tmp_path)
    assert code == 1
    assert {subject for subject, finding in findings.items() if finding["status"] == "problem"} == set(found), findings
