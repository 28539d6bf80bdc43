"""Where trials are kept: any Optuna storage, by its URL."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from autofit.errors import StorageError
from autofit.records.distribution import install_command
from autofit.storage.urls import JOURNAL, SQLITE, file_of, url_of

_ERRORS = (SQLAlchemyError, optuna.exceptions.StorageInternalError, OSError, KeyError)
_OPENING_ERRORS = (*_ERRORS, ImportError, ValueError, RuntimeError)
_PATIENCE_SECONDS = 60  # for another process that writes to the same SQLite file
_MADE_MEANWHILE = ("already exists", "unique constraint", "duplicate key")
_OPENINGS, _OPENING_SECONDS = 10, 0.2
_EXTRAS = {"postgresql+psycopg": "postgresql", "mysql+pymysql": "mysql"}

GONE = (
    "what this tune had stored is gone: it was forgotten meanwhile (autofit history --prune, or a tune of the same with "
    "--fresh); start it once more"
)

Returned = TypeVar("Returned")
Arguments = ParamSpec("Arguments")


def open_storage(storage: str | None) -> BaseStorage:
    """Open a storage; what is not there yet is made.

    Args:
        storage: `sqlite:///FILE`, `postgresql://…` or another URL that Optuna takes, `journal:FILE` (a file that may lie on
            a network drive), or the path of an SQLite file.

    Raises:
        StorageError: it cannot be opened.
    """
    url = url_of(storage)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        file = file_of(url)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            if url.startswith(JOURNAL):
                return JournalStorage(JournalFileBackend(str(file)))
        return _open_database(url)
    except _OPENING_ERRORS as error:
        raise _error(error, url) from None


def _open_database(url: str, openings: int = _OPENINGS) -> BaseStorage:
    """Open it, and make its tables where there are none; where another process makes them just now, look again."""
    patience = {"connect_args": {"timeout": _PATIENCE_SECONDS}} if url.startswith(SQLITE) else {"pool_pre_ping": True}
    try:
        return RDBStorage(url, engine_kwargs=patience)
    except SQLAlchemyError as error:
        if openings == 1 or not any(sign in str(error).lower() for sign in _MADE_MEANWHILE):
            raise
        time.sleep(_OPENING_SECONDS)
        return _open_database(url, openings - 1)


def close(backend: BaseStorage) -> None:
    """Let go of a storage."""
    backend.remove_session()
    if isinstance(backend, RDBStorage):
        backend.engine.dispose()


@contextlib.contextmanager
def opened(storage: str | None) -> Iterator[BaseStorage]:
    """A storage that is let go of at the end.

    Raises:
        StorageError: it cannot be opened, read or written.
    """
    backend = open_storage(storage)
    try:
        yield backend
    except _ERRORS as error:
        raise _error(error, url_of(storage)) from None
    finally:
        close(backend)


def guarded(method: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Turn what a storage raises in a method into a `StorageError`."""

    @functools.wraps(method)
    def wrapper(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        try:
            return method(*args, **kwargs)
        except _ERRORS as error:
            raise _error(error) from None

    return wrapper


def _error(error: Exception, url: str = "") -> StorageError:
    extra = _EXTRAS.get(url.partition("://")[0])
    if isinstance(error, ImportError) and extra:
        return StorageError(f"the trials cannot be stored: {extra} needs its driver: {install_command(extra)}")
    if isinstance(error, ArgumentError):
        return StorageError(
            f"the trials cannot be stored: {url!r} is no storage; write sqlite:///FILE, postgresql://USER@HOST/DATABASE or "
            "journal:FILE"
        )
    if isinstance(error, KeyError):
        return StorageError(GONE)
    told = str(error).strip().splitlines()
    reason = told[0] if told else type(error).__name__
    return StorageError(f"the trials cannot be stored: {reason}; give a writable place as storage")
