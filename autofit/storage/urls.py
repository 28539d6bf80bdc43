"""The URLs of storages; does not load Optuna.

The URL of an SQLite file encodes `?` as `%3F` and `%` as `%25`, as in SQLAlchemy from 2.1 on.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import platformdirs

SQLITE, JOURNAL = "sqlite:///", "journal:"
_SCHEMES = {  # each with the driver that an extra of autofit installs
    "postgres://": "postgresql+psycopg://",
    "postgresql://": "postgresql+psycopg://",
    "mysql://": "mysql+pymysql://",
}
_PASSWORD = re.compile(r"(://[^/?#@:]*:).*@")  # greedy: a password may contain any character unescaped


def default_storage() -> str:
    """Return the URL of the SQLite file that is used if the user names no storage."""
    return f"{SQLITE}{platformdirs.user_data_path('autofit') / 'trials.sqlite3'}"


def url_of(storage: str | None) -> str:
    """Return the URL of a storage that is given as a URL or as the path of an SQLite file; None means the default."""
    url = storage or default_storage()
    for scheme, with_driver in _SCHEMES.items():
        if url.startswith(scheme):
            return with_driver + url.removeprefix(scheme)
    if "://" in url or url.startswith(JOURNAL):
        return url
    return SQLITE + str(Path(url).expanduser()).replace("%", "%25").replace("?", "%3F")


def shown(storage: str | None) -> str:
    """Return the URL of a storage without its password, for display."""
    url = url_of(storage)
    return _PASSWORD.sub(r"\g<1>***@", url) if "://" in url else url


def exists(storage: str | None) -> bool:
    """Return whether a storage may contain something: False only for a file that does not exist."""
    file = file_of(url_of(storage))
    return file is None or file.exists()


def file_of(url: str) -> Path | None:
    """Return the file of an SQLite or journal storage; None for a server."""
    if url.startswith(JOURNAL):
        return Path(url.removeprefix(JOURNAL)).expanduser()
    if url.startswith(SQLITE):
        return Path(unquote(url.removeprefix(SQLITE).partition("?")[0])).expanduser()
    return None
