"""Two whole tunes on the fake launcher, as they were when they were frozen: what is tried, run and chosen.

GOLDEN=write pytest tests/unit/tuning/test_golden.py    freezes them anew, after a change that is meant to change them
"""

import json
import os
from pathlib import Path

import pytest

from tests.fakes import MIB, FakeLauncher, collect, make_request, tune

GOLDEN = Path(__file__).with_name("golden.json")
TUNES = {
    "no limit": ({"max_trials": 12}, {}),
    "a device limit": ({"max_trials": 12, "device_bytes": 330 * MIB}, {"cliff": 160}),
}


def outline(record):
    """What a tune did and found, without times and bytes that the fake launcher makes up."""
    return {
        "tried": [f"{trial.config}: {trial.measurement.outcome}" for trial in record.trials],
        "run": [f"{run.stage} {run.config}: {run.measurement.outcome}" for run in record.runs],
        "chosen": str(record.config),
        "samples_per_second": round(record.samples_per_second),
        "gain": [round(value, 2) for value in (record.speedup.ratio, record.speedup.low, record.speedup.high)],
        "stopped": record.stop_reason,
    }


@pytest.mark.parametrize("name", TUNES)
def test_a_tune_is_as_it_was(name, tmp_path):
    settings, machine = TUNES[name]
    _, record = collect(tune, make_request(tmp_path, **settings), FakeLauncher(**machine))
    found = outline(record)
    if os.environ.get("GOLDEN") == "write":
        frozen = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
        GOLDEN.write_text(json.dumps({**frozen, name: found}, indent=1) + "\n")
    assert found == json.loads(GOLDEN.read_text())[name]
