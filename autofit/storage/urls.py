"""The URLs of storages; does not load Optuna.

In the URL of an SQLite file, `%3F` is a `?` and `%25` a `%`, as in SQLAlchemy from 2.1 on.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import platformdirs

SQLITE, JOURNAL = "sqlite:///", "journal:"
_SCHEMES = {  # with the drivers of the extras
    "postgres://": "postgresql+psycopg://",
    "postgresql://": "postgresql+psycopg://",
    "mysql://": "mysql+pymysql://",
}
_PASSWORD = re.compile(r"(://[^/?#@:]*:).*@")  # greedy: it may contain any character that was not escaped


def default_storage() -> str:
    """The URL of the SQLite file that stores trials unless the user names another storage."""
    return f"{SQLITE}{platformdirs.user_data_path('autofit') / 'trials.sqlite3'}"


def url_of(storage: str | None) -> str:
    """Convert what users name as storage to a URL: a URL, the path of an SQLite file, or None for the default."""
    url = storage or default_storage()
    for scheme, with_driver in _SCHEMES.items():
        if url.startswith(scheme):
            return with_driver + url.removeprefix(scheme)
    if "://" in url or url.startswith(JOURNAL):
        return url
    return SQLITE + str(Path(url).expanduser()).replace("%", "%25").replace("?", "%3F")


def shown(storage: str | None) -> str:
    """The URL of a storage, for people: without its password."""
    url = url_of(storage)
    return _PASSWORD.sub(r"\g<1>***@", url) if "://" in url else url


def exists(storage: str | None) -> bool:
    """Whether a storage may contain something: False for a file that does not exist."""
    file = file_of(url_of(storage))
    return file is None or file.exists()


def file_of(url: str) -> Path | None:
    """The file of an SQLite or journal storage; None for a server."""
    if url.startswith(JOURNAL):
        return Path(url.removeprefix(JOURNAL)).expanduser()
    if url.startswith(SQLITE):
        return Path(unquote(url.removeprefix(SQLITE).partition("?")[0])).expanduser()
    return None
