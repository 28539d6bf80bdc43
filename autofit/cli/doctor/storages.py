"""Checks of a storage that the user names: that it answers, and that its lock holds."""

from __future__ import annotations

from autofit.cli.doctor import folders
from autofit.cli.doctor.findings import Finding, ok, problem
from autofit.errors import StorageError
from autofit.storage import urls

_SUBJECT = "storage"


def named(storage: str) -> Finding:
    """Check a storage by its URL, or the path of an SQLite file."""
    url = urls.url_of(storage)
    file = urls.file_of(url)
    if file is None:
        return _server(storage)
    if not url.startswith(urls.JOURNAL):
        return folders.storage(folders.read(file.parent))
    return _journal(folders.read(file.parent))


def _server(storage: str) -> Finding:
    from autofit.storage.connection import open_storage  # late: loads Optuna

    try:
        open_storage(storage)
    except StorageError as error:
        return problem(_SUBJECT, str(error), "Correct the URL, or start its server.")
    return ok(_SUBJECT, f"{urls.shown(storage)} answers")


def _journal(folder: folders.Folder) -> Finding:
    """Check that two processes that lock a journal in a folder take turns."""
    from autofit.storage.journal_lock import PROCESSES, turns_of  # late: loads Optuna

    place = f"{folder.path} ({folder.file_system})" if folder.file_system else str(folder.path)
    elsewhere = "Store trials in PostgreSQL: autofit sweep --storage postgresql://USER@HOST/DATABASE."
    try:
        turns, counted = turns_of(folder.path)
    except OSError as error:
        return problem(_SUBJECT, f"a journal in {place} cannot be locked: {error}", elsewhere)
    if counted != turns:
        detail = (
            f"{turns - counted} of {turns} turns were lost in {place}: two processes hold the lock of a journal at once"
        )
        return problem(_SUBJECT, detail, elsewhere)
    return ok(_SUBJECT, f"{PROCESSES} processes took {turns} turns with a journal in {place}")
