"""Open any Optuna storage by its URL, and turn its errors into `StorageError`."""

from __future__ import annotations

import contextlib
import functools
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from urllib.parse import quote

import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from autofit.errors import StorageError
from autofit.records.distribution import install_command
from autofit.storage.urls import JOURNAL, SQLITE, exists, file_of, shown, url_of

ERRORS = (SQLAlchemyError, optuna.exceptions.StorageInternalError, OSError)  # what a storage raises if it fails

_REMEDIES = {  # by a phrase in the cause of the error
    "locked": "another program writes to it: end that program, or give another storage",
    "full": "free some space there, or give another storage",
    "No space left": "free some space there, or give another storage",
    "not a database": "it is another kind of file: give another storage",
    "does not exist": "create it, or correct the URL",
    "authentication": "correct the user and the password in the URL",
    "connection": "start its server, or correct the URL; stored trials are kept",
}
_UNREADABLE = (  # raised while decoding damaged content; RecursionError for values nested thousands of times
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, RecursionError,
)  # fmt: skip  # one item a line would be longer, not clearer
_PACKAGE = str(Path(__file__).parents[1])
_BUSY_SECONDS = 60  # longest wait for another process that writes to the same SQLite file
_RACE_MESSAGES = ("already exists", "unique constraint", "duplicate key")  # another process is making the same tables
_OPEN_TRIES, _RETRY_SECONDS = 10, 0.2  # while another process creates the tables
_NOT_FOUND = "Record does not exist"  # Optuna's KeyError for a study that does not exist
_EXTRAS = {"postgresql+psycopg": "postgresql", "mysql+pymysql": "mysql"}


Returned = TypeVar("Returned")
Arguments = ParamSpec("Arguments")


class StudyGoneError(StorageError):
    """Raised if another process deleted a study that is in use."""


def open_storage(storage: str | None) -> BaseStorage:
    """Open a storage; create it if it does not exist.

    `storage` is a URL that Optuna takes, `journal:FILE`, or the path of an SQLite file. A journal may be on a network drive
    only if file locks work there.
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
    except (*ERRORS, *_UNREADABLE, ImportError, RuntimeError) as error:
        raise _storage_error(error, url) from None


def _open_database(url: str, tries: int = _OPEN_TRIES) -> BaseStorage:
    options = {"connect_args": {"timeout": _BUSY_SECONDS}} if url.startswith(SQLITE) else {"pool_pre_ping": True}
    try:
        return RDBStorage(_for_optuna(url), engine_kwargs=options)
    except SQLAlchemyError as error:
        if tries == 1 or not any(message in str(error).lower() for message in _RACE_MESSAGES):
            raise
        time.sleep(_RETRY_SECONDS)
        return _open_database(url, tries - 1)


def _for_optuna(url: str) -> str:
    """Return the URL as Optuna takes it: with doubled braces, and as a `file:` URI where SQLAlchemy 2.0 needs one."""
    file = file_of(url)
    if file is not None:
        name, query = quote(str(file)), url.partition("?")[2]
        if make_url(f"{SQLITE}{name}").database != str(file):
            name, query = f"file:{name}", "&".join(["uri=true", *filter(None, [query])])
        url = f"{SQLITE}{name}{'?' if query else ''}{query}"
    return url.replace("{", "{{").replace("}", "}}")


def close(backend: BaseStorage) -> None:
    """Close a storage."""
    backend.remove_session()
    if isinstance(backend, RDBStorage):
        backend.engine.dispose()


def attributes_of(storage: str | None, name: str) -> Mapping[str, Any] | None:
    """Read the system attributes of a study; return None if there is no such study."""
    if not exists(storage):
        return None
    with opened(storage) as backend:
        try:
            return backend.get_study_system_attrs(backend.get_study_id_from_name(name))
        except KeyError:
            return None


@contextlib.contextmanager
def opened(storage: str | None) -> Iterator[BaseStorage]:
    """Open a storage for the duration of a block; turn its errors in the block into `StorageError`."""
    backend = open_storage(storage)
    try:
        with _explained(url_of(storage)):
            yield backend
    finally:
        close(backend)


def guarded(method: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Turn the storage errors of a method into `StorageError`; let all other errors pass."""

    @functools.wraps(method)
    def wrapper(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        with _explained():
            return method(*args, **kwargs)

    return wrapper


@contextlib.contextmanager
def _explained(url: str = "") -> Iterator[None]:
    """Turn storage errors into `StorageError`, including errors that damaged content causes in Optuna."""
    try:
        yield
    except (*ERRORS, *_UNREADABLE) as error:
        raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
        if raised_in.startswith(_PACKAGE) and not isinstance(error, ERRORS):
            raise
        raise _storage_error(error, url) from None


@contextlib.contextmanager
def readable(name: str) -> Iterator[None]:
    """Turn an error in a block that decodes the stored trials of a study into a `StorageError` that names the study."""
    try:
        yield
    except _UNREADABLE as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise StorageError(
            f"the stored trials of the tune {name} are damaged, or autofit did not write them ({first}). Tune with "
            f"--fresh, or delete them: optuna delete-study --study-name {name} --storage URL"
        ) from None


def study_is_gone() -> StudyGoneError:
    """Return the error for a study that was deleted while it was in use."""
    return StudyGoneError(
        "the stored trials of this tune are gone: another process deleted them (optuna delete-study, or the same tune with "
        "--fresh). Start the tune again"
    )


def _storage_error(error: Exception, url: str = "") -> StorageError:
    if isinstance(error, KeyError) and _NOT_FOUND in str(error):
        return study_is_gone()
    extra = _EXTRAS.get(url.partition("://")[0])
    if isinstance(error, ImportError) and extra:
        return StorageError(f"the trials cannot be stored: {extra} needs its driver: {install_command(extra)}")
    if isinstance(error, ArgumentError):
        return StorageError(
            f"the trials cannot be stored: {shown(url)!r} is not the URL of a storage; write sqlite:///FILE, "
            "postgresql://USER@HOST/DATABASE or journal:FILE"
        )
    causes = [error]
    while isinstance(cause := causes[-1].__cause__, Exception):
        causes.append(cause)
    error = causes[-1]  # it says what is wrong; the errors around it, what was tried
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    reason = next(iter(text.strip().splitlines()), type(error).__name__)
    if isinstance(error, OSError) and error.filename:
        reason += f": {error.filename}"
    if url:
        reason = reason.replace(url, shown(url))
    remedy = next((remedy for sign, remedy in _REMEDIES.items() if sign in reason), "give a storage that is writable")
    if isinstance(error, _UNREADABLE) and (not url or file_of(url)):  # otherwise the URL is wrong
        remedy = "it is damaged, or autofit did not write it: give another storage"
    return StorageError(f"the trials cannot be stored: {reason}; {remedy}")
