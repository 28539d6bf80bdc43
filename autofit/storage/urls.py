"""Where trials are kept, by URL, and what is kept with a study there: read without loading Optuna."""

from __future__ import annotations

from pathlib import Path

import platformdirs

SQLITE, JOURNAL = "sqlite:///", "journal:"
_SCHEMES = {"postgresql://": "postgresql+psycopg://", "mysql://": "mysql+pymysql://"}  # with the drivers of the extras


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


def exists(storage: str | None) -> bool:
    """Whether a storage may hold something: False for a file that does not exist."""
    url = url_of(storage)
    file = file_of(url)
    return file is None or file.exists()


def file_of(url: str) -> Path | None:
    """The file of a storage that is one."""
    prefix = next((prefix for prefix in (SQLITE, JOURNAL) if url.startswith(prefix)), None)
    return None if prefix is None else Path(url.removeprefix(prefix).partition("?")[0]).expanduser()
