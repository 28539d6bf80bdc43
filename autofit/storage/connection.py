"""Find and open the storage of a URL, and turn its errors into `StorageError`.

Loads Optuna, which takes a second.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import optuna
import platformdirs
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError

from autofit.errors import StorageError
from autofit.records import install_command

SQLITE = "sqlite:///"
JOURNAL = "journal:"
# with the drivers that autofit's extras install, which are not those that SQLAlchemy looks for
_SCHEMES = {
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
}
# greedy: a password may have any character
_masked = partial(re.compile(r"(://[^/?#@:]*:).*@").sub, r"\g<1>***@")
# by what the error says; the last one is for all others
_REMEDIES = {
    "is locked": "another program writes to it: end that program, or give another storage",
    "disk is full|No space left": "free some space there, or give another storage",
    "No module named": "install the driver: "
    f"{install_command('postgresql')} or {install_command('mysql')}",
    "SQLAlchemy URL|load plugin": "write sqlite:///FILE, postgresql://USER@HOST/DATABASE "
    "or journal:FILE",
    "connection failed|connect to|resolve host": "start its server, or correct the URL",
    "Record does not exist": "another process deleted them (optuna delete-study, "
    "or the same tune with --fresh)",
    "": "give a storage that is writable or, if the stored trials are damaged, tune with --fresh",
}
# longest wait for another process that writes to the same SQLite file
_BUSY_SECONDS = 60
# ample for another process to make the tables
_RETRY_SECONDS = 1


def _is_path(storage: str | None) -> bool:
    return storage is None or ("://" not in storage and not storage.startswith(JOURNAL))


def url_of(storage: str | None) -> str:
    """Return the URL of a storage, which is given as a URL or as the path of an SQLite file.

    None means the default file.
    """
    storage = storage or str(platformdirs.user_data_path("autofit") / "trials.sqlite3")
    scheme, is_url, address = storage.partition("://")
    if is_url:
        return f"{_SCHEMES.get(scheme, scheme)}://{address}"
    if storage.startswith(JOURNAL):
        return storage
    return SQLITE + str(Path(storage).expanduser())


def shown(storage: str | None) -> str:
    """Return the URL of a storage without its password, for display."""
    return _masked(url_of(storage))


def file_of(storage: str | None) -> Path | None:
    """Return the file of a storage; None if it is a server."""
    url = url_of(storage)
    if _is_path(storage):
        return Path(url.removeprefix(SQLITE))
    if url.startswith(JOURNAL):
        return Path(url.removeprefix(JOURNAL)).expanduser()
    if url.startswith(SQLITE):
        # as SQLAlchemy does
        return Path(unquote(url.removeprefix(SQLITE).partition("?")[0]))
    return None


def attributes_of(storage: str | None, name: str) -> Mapping[str, Any] | None:
    """Read the system attributes of a study; return None if there is no such study."""
    file = file_of(storage)
    if file is None or file.exists():
        with opened(storage) as backend, contextlib.suppress(KeyError):
            return backend.get_study_system_attrs(backend.get_study_id_from_name(name))
    return None


@contextlib.contextmanager
def opened(storage: str | None) -> Iterator[BaseStorage]:
    """Open a storage for a block, and create its file.

    Turn errors, in the block too, into `StorageError`.
    """
    with _quiet_optuna(), explained(f" in {shown(storage)}"):
        url = url_of(storage)
        file = file_of(storage)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
        if url.startswith(JOURNAL):
            yield JournalStorage(JournalFileBackend(str(file)))
            return
        if _is_path(storage):
            # SQLAlchemy unquotes the URL, then SQLite the name of the file
            path = f"file:{quote(str(file))}"
            exact = URL.create("sqlite", database=path, query={"uri": "true"})
            url = exact.render_as_string()
        try:
            backend = _database(url)
        except DBAPIError:
            # perhaps because another process is making the same tables
            time.sleep(_RETRY_SECONDS)
            backend = _database(url)
        try:
            yield backend
        finally:
            backend.remove_session()
            backend.engine.dispose()


@contextlib.contextmanager
def _quiet_optuna() -> Iterator[None]:
    """Let Optuna log warnings only.

    The level is one for the whole process, and the user's studies have their own.
    """
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(level)


def _database(url: str) -> RDBStorage:
    options: dict[str, Any] = {"pool_pre_ping": True}
    if url.startswith(SQLITE):
        options = {"connect_args": {"timeout": _BUSY_SECONDS}}
    # Optuna formats the URL
    template = url.replace("{", "{{").replace("}", "}}")
    return RDBStorage(template, engine_kwargs=options)


# A storage raises errors of Optuna, SQLAlchemy, a driver or the file system and, if its content is
# damaged, any other error. So the blocks contain accesses to a storage alone, and every error in
# them counts as one of the storage.
@contextlib.contextmanager
def explained(where: str = "") -> Iterator[None]:
    """Turn the errors in a block, or in a function that this decorates, into `StorageError`."""
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        cause: BaseException = error
        # the innermost says what is wrong, the others what was tried
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = _masked(
            next(iter(str(cause).strip().splitlines()), type(cause).__name__)
        )
        remedy = next(
            remedy for sign, remedy in _REMEDIES.items() if re.search(sign, reason)
        )
        raise StorageError(
            f"the trials cannot be stored{where}: {reason}; {remedy}"
        ) from None
