"""The private folder of a launcher: the pickled workload, its arrays, logs, and all temporary files
of its trials.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autofit.errors import AutofitError, TrialProcessError
from autofit.machine import host

# The launcher removes the folder on close. If the driver was killed, the trial server or its guard
# removes it; if these were also killed, the next launcher does. A lock marks a folder that is in
# use: the kernel releases the lock when its holder ends, and systemd-tmpfiles does not touch a
# locked folder.
#
# A launcher removes only what a launcher made: a folder with a marker, which names the kernel that
# the lock belongs to. Hosts that share TMPDIR may not see each other's locks. A folder of an
# earlier boot stays, too.

_PREFIX = "autofit-tune-"
# names of `mkdtemp`
_FOLDERS = _PREFIX + 8 * "[a-z0-9_]"
_MARKER = ".autofit-tune"
_PRELOAD = "preload.json"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# names of studies
_STUDIES = "autofit-" + 16 * "[0-9a-f]"
# after its last tune, a study's programs are kept for this long
_KEPT_SECONDS = 7 * 24 * 3600.0


@dataclass(frozen=True)
class Preload:
    """What forks of a server need, before they run a script: its environment, and the packages that
    it imports.
    """

    environment: dict[str, str]
    packages: list[str]
    # whether the process that imported them has no threads of Python, which forks lack
    is_safe: bool

    def save(self, folder: Path) -> None:
        (folder / _PRELOAD).write_text(json.dumps(vars(self)))

    @classmethod
    def load(cls, folder: Path) -> Preload | None:
        """Return what a script's first run noted; None before it, or without a script."""
        file = folder / _PRELOAD
        return cls(**json.loads(file.read_text())) if file.exists() else None


class TuneFolder:
    """Creates a new folder, and removes the folders that earlier launchers left behind.

    Programs that are compiled go to `compiled` where it can be used, and stay there.
    """

    def __init__(self, compiled: Path | None = None) -> None:
        self.path = host.temporary_folder()
        with explained_errors(self.path):
            _remove_left(self.path)
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        self._marker = self.path / _MARKER
        self.server_log = self.path / "server.log"
        # files of the user's code, and those that TensorFlow and XLA leave behind
        self.temporary = self.path / "tmp"
        # programs, which all processes of the tune share
        self._kept = compiled if compiled is not None and _is_kept(compiled) else None
        self.compiled = self._kept or self.path / "compiled"
        try:
            with explained_errors(self.path):
                # on a file system without locks, no launcher removes folders
                with contextlib.suppress(OSError):
                    fcntl.flock(self._lock, fcntl.LOCK_EX)
                # after the lock: no other launcher removes a folder without a marker
                self._marker.write_text(_kernel())
                self.temporary.mkdir()
                self.compiled.mkdir(exist_ok=True)
        except TrialProcessError:
            self.remove()
            raise

    def clear(self) -> None:
        """Remove the files of a workload and its trials; keep the server's log and the folders."""
        for path in self.path.iterdir():
            if path.is_file() and path not in (self.server_log, self._marker):
                path.unlink()

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.close(self._lock)
        if self._kept is not None:
            # where nothing is compiled, they are empty
            with contextlib.suppress(OSError):
                self._kept.rmdir()
                self._kept.parent.rmdir()


@contextlib.contextmanager
def explained_errors(
    folder: Path, kind: type[AutofitError] = TrialProcessError
) -> Iterator[None]:
    """Turn a file system error in a block that writes to a launcher's folder into one of autofit,
    with a remedy.
    """
    try:
        yield
    except OSError as error:
        problem = "was removed while it was in use"
        if folder.is_dir():
            problem = f"is not writable: {error.strerror or error}"
        what = f"the folder for temporary files, {folder}, {problem}"
        remedy = (
            "Free some space there, or set TMPDIR to another folder, and run this again"
        )
        raise kind(f"{what}. {remedy}; finished trials are kept") from None


def _is_kept(folder: Path) -> bool:
    """Make a study's folder of programs; return whether it can be used.

    Others beside it that were not used lately are removed.
    """
    now = time.time()
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # with a time, it fails for a folder of another user, whose programs are not run
        os.utime(folder, (now, now))
        for other in folder.parent.glob(_STUDIES):
            if now - other.stat().st_mtime > _KEPT_SECONDS:
                shutil.rmtree(other, ignore_errors=True)
        return True
    return False


def _remove_left(parent: Path) -> None:
    for folder in parent.glob(_FOLDERS):
        # UnicodeDecodeError: a marker that is not ours
        with contextlib.suppress(OSError, UnicodeDecodeError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                # fails for a folder in use
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if (folder / _MARKER).read_text() == _kernel():
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def _kernel() -> str:
    """Name the running kernel, whose locks are those of its own processes only."""
    try:
        return _BOOT_ID.read_text()
    except OSError:  # not on Linux
        return platform.node()
