"""The user's training script as it is: run up to its call of `fit` with one edit, and ended there.

The first run:   the text with marks ──> runs as __main__ ──> calls fit ──> its places
The later ones:  the text with edits ──> runs as __main__ ──> calls fit ──> a trial
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autofit.errors import UsageError
from autofit.records.knobs import KNOBS
from autofit.workload.reference import expanded

_BACKEND = re.compile(
    r"""^[^#\n]*KERAS_BACKEND["']\s*[\],]\s*=?\s*["'](\w+)["']""", re.MULTILINE
)
# programs which start a process for each GPU
_OTHER_LAUNCHERS = ("torchrun", "horovodrun", "accelerate")


@dataclass(frozen=True)
class Script:
    """A script with its arguments, as `python FILE ARGUMENTS` or `python -m MODULE ARGUMENTS` run
    it.
    """

    file: str  # absolute; empty for a module
    module: str = ""
    arguments: tuple[str, ...] = ()
    # the same, with variables of the environment as a tuning file has them, for people to read
    written: tuple[str, ...] = ()
    # where knobs are set, by knob
    settings: Mapping[str, str] = field(default_factory=dict)
    fit: int = 0  # the call of `fit` that is tuned, from 1; 0 for the only one
    writes: bool = False  # whether it may write files before it calls `fit`

    @property
    def name(self) -> str:
        return self.module or Path(self.file).name

    @property
    def path(self) -> Path | None:
        """The file that runs; None for a module that is not below the working folder."""
        if not self.module:
            return Path(self.file)
        folder = Path.cwd().joinpath(*self.module.split("."))
        for file in (folder.with_suffix(".py"), folder / "__main__.py"):
            if file.is_file():
                return file
        return None

    @property
    def command(self) -> str:
        """The command line that runs the script."""
        started = ["-m", self.module]
        if not self.module:
            started = [os.path.relpath(self.file)]
        return shlex.join(["python", *started, *self.written])

    @property
    def text(self) -> str:
        """The text of the file that runs."""
        return self.path.read_text(errors="replace") if self.path else ""

    def backend(self) -> str | None:
        """Return the backend that the script's text sets before it imports Keras; None if it sets
        none.
        """
        found = _BACKEND.search(self.text)
        return found[1] if found else None

    def validate(self) -> None:
        """Raise UsageError if this cannot be a script, without running anything."""
        problem = ""
        unknown = [knob for knob in self.settings if knob not in KNOBS]
        launcher = Path(self.name).name
        path = Path(self.file)
        if unknown:
            problem = f"{unknown[0]} is not a knob; there are {', '.join(KNOBS)}"
        elif launcher in _OTHER_LAUNCHERS:
            problem = (
                f"{launcher} starts a process for each GPU; autofit starts the "
                "processes itself: give the script, and device: 2x gpu for several GPUs"
            )
        elif self.module:
            if not all(map(str.isidentifier, self.module.split("."))):
                problem = f"{self.module!r} does not name a module"
        elif path.suffix == ".ipynb":
            problem = (
                f"{path.name} is a notebook; tune in one of its cells, with the functions that it "
                "defines:\n\n    import autofit\n    result = autofit.tune(build_model, (x, y))\n"
            )
        elif not path.is_file():
            problem = f"there is no file {path}"
        else:
            try:
                compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
            except SyntaxError as error:
                problem = f"{path}:{error.lineno}: {error.msg}"
            except (OSError, ValueError) as error:
                problem = f"{path} cannot be read: {error}"
        if problem:
            raise UsageError(problem, key="script")


# the arguments of `tune_script` and of tuning files that describe a script
ARGUMENTS = ("script", "arguments", "places", "fit", "writes")


def make_script(
    script: str,
    arguments: Sequence[Any] = (),
    places: Mapping[str, str] | None = None,
    fit: int = 0,
    writes: bool = False,
    folder: str = ".",
) -> Script:
    """Return the script of a path relative to a folder, or of "-m MODULE"; raise UsageError if
    there is none.
    """
    is_module = script.startswith("-m ")
    module = script[3:].strip() if is_module else ""
    file = "" if is_module else str((Path(folder) / script).absolute())
    given = tuple(str(expanded(part)) for part in arguments or ())
    written = tuple(map(str, arguments or ()))
    made = Script(
        file,
        module,
        arguments=given,
        written=written,
        settings=dict(places or {}),
        fit=fit,
        writes=writes,
    )
    made.validate()
    return made


def is_named(text: str) -> bool:
    """Return whether an argument of the command line names a script and not a tuning file."""
    is_file = text.endswith((".py", ".ipynb"))
    return is_file or Path(text).name in _OTHER_LAUNCHERS
