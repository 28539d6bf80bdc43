"""The private folder of a launcher: the pickled workload, its arrays, logs, and all temporary files of its trials.

It is removed when the launcher is closed; by the trial server, or its guard, where the driver was killed; and by the next
launcher where all were. A lock on the folder, which the kernel releases with its holder, tells those in use from those left
behind; systemd-tmpfiles, too, leaves a locked folder alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from autofit.errors import TrialProcessError

_PREFIX = "autofit-tune-"
_TEMPORARY, _COMPILED = "tmp", "compiled"


class TuneFolder:
    """A new folder; those that launchers have left behind are removed.

    Raises:
        TrialProcessError: it cannot be made.
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.gettempdir())
        with self.explained_errors():
            _remove_left(self.path)
            self.path, self._lock = _locked_folder()
            self.temporary.mkdir()
            self.compiled.mkdir()

    @property
    def temporary(self) -> Path:
        """Where the processes of the tune put temporary files: TensorFlow's and XLA's, which they leave, and the user's."""
        return self.path / _TEMPORARY

    @property
    def compiled(self) -> Path:
        """What the processes of the tune share, once it is compiled."""
        return self.path / _COMPILED

    def clear(self, *kept: str) -> None:
        """Remove the files, except those with these names; the folders stay."""
        for path in self.path.iterdir():
            if path.is_file() and path.name not in kept:
                path.unlink()

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.close(self._lock)

    @contextlib.contextmanager
    def explained_errors(self) -> Iterator[None]:
        """Turn errors of the file system, in a block that writes to the folder, into one that says what to do.

        Raises:
            TrialProcessError: the folder is full, or gone.
        """
        try:
            yield
        except OSError as error:
            if self.path.is_dir():
                problem = f"cannot be written: {error.strerror or error}"
            else:
                problem = "was removed while it was in use"
            raise TrialProcessError(
                f"the folder for temporary files, {self.path}, {problem}. Free some space there, or set TMPDIR to another "
                "folder, and run this again; finished trials are kept"
            ) from None


def _locked_folder() -> tuple[Path, int]:
    """Make a folder and lock it; again if another launcher took it for one that was left, before the lock was held."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.suppress(OSError):  # a file system without locks: there no folder is taken for one that was left
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder, descriptor
        os.close(descriptor)


def _remove_left(parent: Path) -> None:
    """Remove this user's folders that no launcher holds any more."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(descriptor).st_uid == os.geteuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails for one in use
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
