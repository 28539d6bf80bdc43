"""Where trials are kept: any Optuna storage, by its URL."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ParamSpec, TypeVar

import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from autofit.errors import StorageError
from autofit.places import JOURNAL, SQLITE, url_of

_ERRORS = (SQLAlchemyError, optuna.exceptions.StorageInternalError, OSError)
_OPENING_ERRORS = (*_ERRORS, ImportError, ValueError, RuntimeError)
_PATIENCE_SECONDS = 60  # for another process that writes to the same SQLite file
_EXTRAS = {"postgresql+psycopg": "postgresql", "mysql+pymysql": "mysql"}

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
        for prefix in (SQLITE, JOURNAL):
            if url.startswith(prefix):
                Path(url.removeprefix(prefix)).expanduser().parent.mkdir(parents=True, exist_ok=True)
        if url.startswith(JOURNAL):
            file = str(Path(url.removeprefix(JOURNAL)).expanduser())
            return JournalStorage(JournalFileBackend(file))
        patience = {"connect_args": {"timeout": _PATIENCE_SECONDS}} if url.startswith(SQLITE) else None
        return RDBStorage(url, engine_kwargs=patience)
    except _OPENING_ERRORS as error:
        raise _error(error, url) from None


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
        return StorageError(f"the trials cannot be stored: {extra} needs its driver: pip install 'autofit[{extra}]'")
    if isinstance(error, ArgumentError):
        return StorageError(
            f"the trials cannot be stored: {url!r} is no storage; write sqlite:///FILE, postgresql://USER@HOST/DATABASE or "
            "journal:FILE"
        )
    told = str(error).strip().splitlines()
    reason = told[0] if told else type(error).__name__
    return StorageError(f"the trials cannot be stored: {reason}; give a writable place as storage")
