"""The quickstart: real photographs, a real tune, and lines that train as they are pasted."""

import json
import subprocess
import sys
from pathlib import Path

import yaml

from autofit.api.config import load

ROOT = Path(__file__).resolve().parents[2]


def test_the_quickstart_tunes_and_its_lines_train(tmp_path):
    asked = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text())
    for key in ("build_model", "data", "validation"):
        asked[key] = str((ROOT / "configs" / asked[key].rpartition(":")[0]).resolve()) + ":" + asked[key].rpartition(":")[2]
    (tmp_path / "tune.yaml").write_text(yaml.safe_dump({**asked, "max_trials": 1, "storage": "trials.db"}))
    command = [str(Path(sys.executable).parent / "autofit"), "tune", "tune.yaml", "--output", "result.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=115, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["confirmed"]
    assert result["description"]["parameter_count"] > 1000
    lines = done.stdout.partition("To train with it:\n\n")[2].partition("\nwritten to")[0]
    trained = subprocess.run(
        [sys.executable, "-c", lines], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert trained.returncode == 0, trained.stderr
    assert "val_accuracy" in trained.stdout


def test_the_shipped_configs_are_valid():
    for path in (ROOT / "configs").glob("*.yaml"):
        assert all(told["max_trials"] >= 1 for _, told in load.load_any(path))
