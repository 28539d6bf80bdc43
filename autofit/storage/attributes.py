"""The attributes of a study: their keys, and a fast reader that does not load Optuna."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Mapping
from typing import Any

from autofit.storage.urls import SQLITE, file_of, url_of

RECORD, RUNS, WARM_START_KEY, MODEL, FAILED = (f"autofit:{key}" for key in ("record", "runs", "kin", "model", "failed"))
"""Keys of the attributes, in this order: the prefix of the results (one per budget), the runs after the search, the key
that similar tunes share, the fingerprint of the described model, and the limits below results that failed in the user's
training."""

_QUERY = """
    SELECT attribute.key, attribute.value_json FROM studies
    LEFT JOIN study_system_attributes AS attribute ON attribute.study_id = studies.study_id WHERE studies.study_name = ?
"""  # relies on Optuna's schema, unchanged since version 1.0


def read_quickly(storage: str | None, name: str) -> Mapping[str, Any] | None:
    """Read the system attributes of a study from an SQLite file, without loading Optuna, which takes a second.

    Return None if the storage is of another kind or damaged, or has no such study.
    """
    url = url_of(storage)
    file = file_of(url)
    if file is None or not url.startswith(SQLITE) or not file.is_file():
        return None
    try:
        with contextlib.closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            rows = connection.execute(_QUERY, (name,)).fetchall()
        return {key: json.loads(value) for key, value in rows if key is not None} if rows else None
    except (sqlite3.Error, ValueError, TypeError, RecursionError):
        return None
