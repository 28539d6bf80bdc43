"""What must not change by moving code: users' files, stored tunes, fingerprints, public names and exit codes."""

import contextlib
import json
import re
import sqlite3
import sys
from pathlib import Path

import pytest

import autofit
from tests.internals import fingerprint_of, names_of, run_tune, save_result, save_sweep

DATA = Path(__file__).parents[1] / "data"


def shape(value):
    """JSON with its values replaced by the names of their types; a list by its first entry."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


def extended(now, before):
    """Whether all that was there is still there, in its form; an empty mapping or list may have got entries."""
    if isinstance(before, dict) and isinstance(now, dict):
        return all(key in now and extended(now[key], value) for key, value in before.items())
    if isinstance(before, list) and isinstance(now, list) and before and now:
        return extended(now[0], before[0])
    return now == before or (isinstance(before, dict | list) and not before and type(now) is type(before))


def stored(file, query):
    with contextlib.closing(sqlite3.connect(file)) as connection:
        return {row[0] for row in connection.execute(query)}


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="code is hashed as this version of Python compiles it")
def test_the_fingerprint_of_a_workload():
    found = fingerprint_of(
        DATA / "pinned", "model.py:build", "model.py:Photos", model_kwargs={"depth": 3}, data_kwargs={"folder": "photos"}
    )
    assert found == "80fe0f68e0ae6f3d"


def test_the_names_under_which_a_tune_is_stored(tmp_path):
    assert names_of(tmp_path) == {
        "study": "autofit-eb50c09e94388644",
        "answer": "autofit:record:4d21b4428acfb0f0",
        "kin": "823f4e7e95d1e54b 1000 262144",
    }


def test_the_keys_of_a_stored_study(tmp_path):
    file = tmp_path / "trials.sqlite3"
    run_tune(tmp_path, storage=f"sqlite:///{file}", max_trials=3)
    kept = stored(file, "SELECT key FROM study_system_attributes")
    assert {re.sub("[0-9a-f]{16}", "HASH", key) for key in kept} == {
        "autofit:kin",
        "autofit:model",
        "autofit:record:HASH",
        "autofit:runs",
        "study:metric_names",
    }
    assert stored(file, "SELECT key FROM study_user_attributes") == {
        "chosen",
        "device",
        "host",
        "limits",
        "samples per second",
        "title",
    }
    assert stored(file, "SELECT key FROM trial_user_attributes") == {"limits", "trial"}
    assert stored(file, "SELECT key FROM trial_system_attributes") == {
        "constraints",
        "constraints:device_memory",
        "constraints:host_memory",
    }


@pytest.mark.parametrize(("save", "name"), [(save_result, "result.json"), (save_sweep, "sweep.json")])
def test_the_version_and_the_shape_of_a_saved_file(tmp_path, save, name):
    before = json.loads((DATA / "pinned" / name).read_text())
    _, record = run_tune(tmp_path, max_trials=4)
    save(record, tmp_path / name)
    now = json.loads((tmp_path / name).read_text())
    assert now["version"] == before["version"] == 3
    assert extended(shape(now), shape(before))


def test_the_public_names():
    assert set(autofit.__all__) >= {
        "AutofitError",
        "Cell",
        "ConfigError",
        "DeviceBusyError",
        "Estimate",
        "FitConfig",
        "FrontierSampler",
        "Limits",
        "Measurement",
        "NoTrialFinishedError",
        "NothingFitsError",
        "Outcome",
        "Result",
        "StorageError",
        "SweepResult",
        "Trial",
        "TrialProcessError",
        "UsageError",
        "UserCodeError",
        "estimate",
        "load",
        "measure",
        "sweep",
        "tune",
    }


def test_the_exit_codes_of_errors():
    codes = {
        name: getattr(autofit, name).exit_code
        for name in dir(autofit)
        if isinstance(getattr(autofit, name), type) and issubclass(getattr(autofit, name), autofit.AutofitError)
    }
    wrong_call = {"ConfigError", "StorageError", "UsageError"}
    assert {name for name, code in codes.items() if code == 2} == wrong_call
    assert {code for name, code in codes.items() if name not in wrong_call} == {1}
