"""`autofit verify` finds defects that are made on purpose."""

import json
import shutil
import sys
from pathlib import Path

import pytest

import autofit
from tests.commands import run

PACKAGE = Path(autofit.__file__).parent


@pytest.mark.parametrize(
    ("module", "right", "wrong", "found"),
    [
        (
            "machine/host.py",
            'held=rollup["Pss_Anon"] + dirty_mapped',
            'held=rollup["Rss"]',
            "host memory",
        ),
        (
            "trial/watcher.py",
            "if self.last_bytes > self._limit:\n",
            "if self.last_bytes < 0:\n",
            "host OOM",
        ),
        (
            "trial/worker/task.py",
            "if exhausted is None:",
            "if True:",
            "device memory",
        ),
    ],
    ids=["shared memory", "host OOM", "device memory"],
)
def test_a_defect_is_found(tmp_path, module, right, wrong, found):
    shutil.copytree(
        PACKAGE, tmp_path / "autofit", ignore=shutil.ignore_patterns("__pycache__")
    )
    source = tmp_path / "autofit" / module
    text = source.read_text()
    assert right in text
    source.write_text(text.replace(right, wrong))
    variables = {
        "XDG_DATA_HOME": str(tmp_path),
        "PYTHONPATH": str(tmp_path),
    }  # trials find this one, too
    ran = run(
        sys.executable,
        "-m",
        "autofit",
        "verify",
        "--json",
        folder=tmp_path,
        **variables,
    )
    wrong_figures = [
        one["subject"]
        for one in json.loads(ran.stdout)["findings"]
        if one["status"] == "problem"
    ]
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert found in wrong_figures
