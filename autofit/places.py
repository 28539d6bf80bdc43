"""Where trials are kept, by URL, and what is kept with a study there: read without loading Optuna."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import platformdirs

RECORD, RUNS, KIN, MODEL = (f"autofit:{key}" for key in ("record", "runs", "kin", "model"))
"""Under which a study keeps its answers (one for each budget, which the key goes on to name), runs after the search,
kinship, and the described model."""

SQLITE, JOURNAL = "sqlite:///", "journal:"
_SCHEMES = {"postgresql://": "postgresql+psycopg://", "mysql://": "mysql+pymysql://"}  # with the drivers of the extras
_ATTRIBUTES = """
    SELECT attribute.key, attribute.value_json FROM studies
    LEFT JOIN study_system_attributes AS attribute ON attribute.study_id = studies.study_id WHERE studies.study_name = ?
"""  # of Optuna's schema, which has been the same since its version 1.0


def default_storage() -> str:
    """The URL of the SQLite file in which trials are kept when nothing else is said."""
    return f"{SQLITE}{platformdirs.user_data_path('autofit') / 'trials.sqlite3'}"


def url_of(storage: str | None) -> str:
    """The URL of a storage as users name it: a URL, the path of an SQLite file, or None for the default."""
    url = storage or default_storage()
    for scheme, with_driver in _SCHEMES.items():
        if url.startswith(scheme):
            return with_driver + url.removeprefix(scheme)
    return url if "://" in url or url.startswith(JOURNAL) else f"{SQLITE}{Path(url).expanduser()}"


def is_there(storage: str | None) -> bool:
    """Whether a storage may hold something: False for a file that does not exist."""
    url = url_of(storage)
    file = file_of(url)
    return file is None or file.exists()


def file_of(url: str) -> Path | None:
    """The file of a storage that is one."""
    prefix = next((prefix for prefix in (SQLITE, JOURNAL) if url.startswith(prefix)), None)
    return None if prefix is None else Path(url.removeprefix(prefix).partition("?")[0]).expanduser()


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
