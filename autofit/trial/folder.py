"""The private folder of a launcher: the pickled workload, its arrays, logs, and all temporary files of its trials.

The launcher removes it on close, the trial server or its guard if the driver was killed, and the next launcher otherwise.
A lock tells the folders in use from those left behind: the kernel releases it when its holder ends, and systemd-tmpfiles
does not touch a locked folder.
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


class TuneFolder:
    """A new folder; also removes the folders that earlier launchers left behind.

    `temporary` is for temporary files of the user, and for those that TensorFlow and XLA leave behind; `compiled` is for
    compiled programs, which all processes of the tune share.
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.gettempdir())
        with self.explained_errors():
            _remove_left(self.path)
            self.path, self._lock = _locked_folder()
            self.temporary, self.compiled = self.path / "tmp", self.path / "compiled"
            self.temporary.mkdir()
            self.compiled.mkdir()

    def clear(self, *kept: str) -> None:
        """Remove the files, except those with these names; the folders stay."""
        for path in self.path.iterdir():
            if path.is_file() and path.name not in kept:
                path.unlink()

    def remove(self) -> None:
        """Remove the folder and its content."""
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.close(self._lock)

    @contextlib.contextmanager
    def explained_errors(self) -> Iterator[None]:
        """Turn file system errors of a block that writes to the folder into an error with a remedy.

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
    """Make and lock a folder; try again if another launcher removed it before it was locked."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.suppress(OSError):  # a file system without locks: no launcher removes folders there
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder, descriptor
        os.close(descriptor)


def _remove_left(parent: Path) -> None:
    """Remove folders of this user that no launcher has locked."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(descriptor).st_uid == os.geteuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails for one in use
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
