"""Keep a script from doing in each trial what it should do once: writing, deleting, starting
programs, connecting.
"""
# It cannot see everything: what libraries in C++ and other programs do is hidden. The script's
# folder and the working folder are therefore compared before and after the first run.

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from autofit.workload.script.marks import texts

# environment variables that turn off trackers of experiments, and windows, which would wait for
# somebody to close them
_TURNED_OFF = {
    "MPLBACKEND": "Agg",
    "WANDB_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "COMET_MODE": "disabled",
    "MLFLOW_TRACKING_URI": "file:{folder}/mlruns",
    "DISABLE_MLFLOW_INTEGRATION": "1",
}
_WRITES = "writes {}"
# audit events: what they do to paths, and which of their arguments name these; functions of shutil
# that copy and move come down to these and to `open`
_CHANGES: dict[str, tuple[Any, ...]] = {
    "os.remove": ("deletes {}", 0),
    "os.rmdir": ("deletes {}", 0),
    "shutil.rmtree": ("deletes {}", 0),
    "os.rename": ("moves {} to {}", 0, 1),
    "os.mkdir": ("makes the folder {}", 0),
    "os.link": (_WRITES, 1),
    "os.symlink": (_WRITES, 1),
    "os.truncate": (_WRITES, 0),
    "os.chmod": (_WRITES, 0),
    "sqlite3.connect": (_WRITES, 0),
}
_STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn")
_CONNECTS = "socket.connect"
_WATCHED = {"open", *_CHANGES, *_STARTS, _CONNECTS}
_WRITING_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_PACKAGE = f"{Path(__file__).parents[2]}{os.sep}"
_IMPORTS = "<frozen importlib"
# folders of caches that packages share, below the home folder
_CACHES = (
    ".cache",
    ".config/matplotlib",
    ".keras",
    ".local/share",
    ".nv",
    ".triton",
    "nltk_data",
    "scikit_learn_data",
    "tensorflow_datasets",
)
_NOT_COMPARED = ("__pycache__", "node_modules", "site-packages")
_IN_MEMORY = ":memory:"  # of SQLite
_MOST_FILES = 20_000  # of a folder that are compared


def watch(folder: Path, report: Callable[[str], None]) -> None:
    """Watch the Python code of this process from now on; `report` gets what it must not do, and
    must not return.
    """
    allowed = caches(folder)
    is_busy = False

    def is_allowed(path: Any) -> bool:
        if isinstance(path, int) or path == _IN_MEMORY:  # an open file
            return True
        full = os.path.realpath(os.fsdecode(path))
        return "__pycache__" in Path(full).parts or _is_below(full, allowed)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal is_busy
        # most events are of other kinds
        if event not in _WATCHED or is_busy:
            return
        does = _does(event, arguments)
        if does is None:
            return
        is_busy = True  # what follows opens nothing, but other threads may
        try:
            doing, *paths = does
            if paths and all(map(is_allowed, paths)):
                return
            where = _users_line(sys._getframe(1), changes_files=bool(paths))
            if where:
                report(f"{where} {doing}")
        finally:
            is_busy = False

    sys.addaudithook(hook)


def caches(folder: Path) -> tuple[str, ...]:
    """Return the folders into which any program may write: the tune's own `folder`, and the caches
    of packages.
    """
    home = Path.home()
    # such as those of what JAX and torch compile
    named = [
        value
        for name, value in os.environ.items()
        if value and name.endswith(("CACHE", "CACHE_DIR", "CACHE_PATH"))
    ]
    folders = (
        folder,
        *named,
        tempfile.gettempdir(),
        "/dev",
        "/proc",
        *(home / cache for cache in _CACHES),
        os.environ.get("KERAS_HOME", home / ".keras"),
        os.environ.get("XDG_CACHE_HOME", home / ".cache"),
    )
    return tuple(map(os.path.realpath, folders))


def _is_below(path: str, folders: Iterable[str]) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in folders)


def _does(event: str, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return what an event does, with the paths that it changes; None if it changes nothing."""
    if event == "open":
        path, mode, flags = arguments
        # `os.open` has no mode
        writes = flags & _WRITING_FLAGS
        if mode is not None:
            writes = set(mode) & set("wax+")
        return (_WRITES.format(path), path) if writes and path is not None else None
    if event in _CHANGES:
        does, *indices = _CHANGES[event]
        paths = [arguments[index] for index in indices]
        # `makedirs` of what exists
        if event == "os.mkdir" and Path(*paths).is_dir():
            return None
        return does.format(*paths), *paths
    if event in _STARTS:
        command = arguments[1] if event == "subprocess.Popen" else arguments[0]
        if isinstance(command, list | tuple):
            command = " ".join(map(str, command))
        return (f"runs the program {os.fsdecode(command)[:60]!r}",)
    address = arguments[1]  # a path of a socket on this machine, or a host and a port
    return (f"connects to {address[0]}",) if isinstance(address, tuple) else None


def _users_line(frame: FrameType | None, *, changes_files: bool) -> str:
    """Return the line of the user's code that an event comes from; empty for what packages do on
    their own.
    """
    while frame is not None:
        file = frame.f_code.co_filename
        if file in texts:
            return f"{Path(file).name}:{frame.f_lineno}"
        if file.startswith(_PACKAGE):
            return ""  # a trial calls the user's code from here
        # packages start programs when they are imported, to look at the machine, and Keras
        # downloads data sets into its cache
        is_package = file.startswith(_IMPORTS) or "keras/src/utils/file_utils" in file
        if is_package and not changes_files:
            return ""
        frame = frame.f_back
    return ""


def turn_off_others(folder: Path) -> None:
    """Turn off what would record a trial as a training, or wait for the user."""
    for name, value in _TURNED_OFF.items():
        os.environ[name] = value.format(folder=folder)


class Files:
    """The files of some folders, without those that are `allowed` to change, as they are now."""

    def __init__(self, folders: Iterable[Path], allowed: Iterable[str]) -> None:
        self._folders = {*folders}
        self._allowed = allowed
        self._before = self._states()

    def changed(self) -> list[str]:
        """Return the files that differ by now, but not those that output goes to."""
        differ = self._before.items() ^ self._states().items()
        paths = {path for path, _ in differ}
        return sorted(paths - {*_outputs()})

    def _states(self) -> dict[str, tuple[int, int]]:
        """Return size and time of each file."""
        return dict(itertools.islice(self._all_states(), _MOST_FILES))

    def _all_states(self) -> Iterator[tuple[str, tuple[int, int]]]:
        for folder in self._folders:
            for above, names, files in os.walk(folder):
                if _is_below(os.path.realpath(above), self._allowed):
                    names.clear()
                    continue
                names[:] = [
                    n for n in names if n not in _NOT_COMPARED and not n.startswith(".")
                ]
                for name in files:
                    path = Path(above, name)
                    with contextlib.suppress(FileNotFoundError):
                        status = path.lstat()
                        yield str(path), (status.st_size, status.st_mtime_ns)


def _outputs() -> Iterator[str]:
    """Yield the files that standard output and error of the processes above go to."""
    for process in psutil.Process().parents():
        for number in (1, 2):
            with contextlib.suppress(OSError):  # another user's process
                yield str(Path(f"/proc/{process.pid}/fd/{number}").readlink())
