"""What is kept with a study: its keys, and how it is read without loading Optuna."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Mapping
from typing import Any

from autofit.storage.urls import SQLITE, file_of, url_of

RECORD, RUNS, WARM_START_KEY, MODEL = (f"autofit:{key}" for key in ("record", "runs", "kin", "model"))
"""Under which a study keeps its answers (one for each budget, which the key goes on to name), runs after the search,
kinship, and the described model."""
_ATTRIBUTES = """
    SELECT attribute.key, attribute.value_json FROM studies
    LEFT JOIN study_system_attributes AS attribute ON attribute.study_id = studies.study_id WHERE studies.study_name = ?
"""  # of Optuna's schema, which has been the same since its version 1.0


def read_quickly(storage: str | None, name: str) -> Mapping[str, Any] | None:
    """What is kept with a study in an SQLite file; None where it is none, cannot be read so, or has no such study.

    Optuna takes a second to load and to open it, which a known answer need not wait for.
    """
    url = url_of(storage)
    file = file_of(url)
    if file is None or not url.startswith(SQLITE) or not file.is_file():
        return None
    try:
        with contextlib.closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            rows = connection.execute(_ATTRIBUTES, (name,)).fetchall()
        return {key: json.loads(value) for key, value in rows if key is not None} if rows else None
    except (sqlite3.Error, ValueError):
        return None
