"""Two whole tunes on the fake launcher: what is tried, run and chosen.

One of them has the models of the search in full. After a change that is meant to change
them, this freezes them anew:

    GOLDEN=write pytest tests/unit/tuning/test_golden.py
"""

import json
import os
from pathlib import Path

from autofit.tuning import budget
from tests.fakes import MIB, FakeLauncher, tuned

GOLDEN = Path(__file__).with_name("golden.json")


def outline(record):
    """What a tune did and found, without times and bytes that the fake launcher makes up."""
    return {
        "tried": [
            f"{trial.config}: {trial.measurement.outcome}" for trial in record.trials
        ],
        "run": [
            f"{run.stage} {run.config}: {run.measurement.outcome}"
            for run in record.runs
        ],
        "chosen": str(record.config),
        "samples_per_second": round(record.samples_per_second),
        "gain": [
            round(value, 2)
            for value in (record.speedup.ratio, record.speedup.low, record.speedup.high)
        ],
        "stopped": record.stop_reason,
    }


def test_tunes_are_as_they_were(tmp_path, monkeypatch):
    found = {"no limit": outline(tuned(tmp_path / "a"))}
    monkeypatch.undo()  # the quick models of these tests
    # on a busy machine, the search itself would take the seconds of the comparison
    monkeypatch.setattr(budget, "monotonic", lambda: 0.0)
    found["a device limit"] = outline(
        tuned(tmp_path / "b", FakeLauncher(cliff=160), device_bytes=330 * MIB)
    )
    if os.environ.get("GOLDEN") == "write":
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
    assert found == json.loads(GOLDEN.read_text())
