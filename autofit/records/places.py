"""Places of the user's files where knobs are set, and the edits that set other values there, as a
unified diff.
"""

from __future__ import annotations

import difflib
import io
import os
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NO_NEWLINE = "\\ No newline at end of file\n"


@dataclass(frozen=True)
class Place:
    """Where a script sets a knob: an expression of a file, or an option of the command line.

    `span` is the line, the column in bytes, the last line and the column after the last byte, as
    those of Python's syntax trees. What the script lacks is added at an empty span. `template` is
    what is written there; its {} is the value.
    """

    value: Any  # that the script sets now
    file: str = ""
    span: tuple[int, int, int, int] = (0, 0, 0, 0)
    template: str = "{}"
    name: str = ""  # of the variable, keyword or option
    # such as "--batch-size", or "batch_size=" if the value follows at once
    option: str = ""

    @property
    def is_known(self) -> bool:
        return bool(self.file or self.option)

    @property
    def is_added(self) -> bool:
        start = self.span[:2]
        end = self.span[2:]
        return not self.option and start == end

    @property
    def line(self) -> int:
        return self.span[0]

    def __str__(self) -> str:
        """Return the place as people write it, such as "train.py:12" or "--batch-size"."""
        return self.option.rstrip("=") or f"{Path(self.file).name}:{self.line}"


@dataclass(frozen=True)
class Edits:
    """Values to set at places, by knob; a value that a place has already changes nothing."""

    places: Mapping[str, Place]
    values: Mapping[str, Any]

    def _changed(self) -> Iterator[tuple[Place, Any]]:
        for knob, place in self.places.items():
            value = self.values.get(knob, place.value)
            if value != place.value:
                yield place, value

    @property
    def files(self) -> list[str]:
        """The files that change, by their absolute paths."""
        files = {place.file for place, _ in self._changed()}
        return sorted(filter(None, files))

    @property
    def options(self) -> list[str]:
        """The arguments to add to the command line."""
        arguments = list[str]()
        for place, value in self._changed():
            if place.option.endswith("="):
                arguments.append(f"{place.option}{value}")
            elif place.option:
                arguments += [place.option, str(value)]
        return arguments

    def apply(self, file: str, text: str) -> str:
        """Return the text of a file with the edits."""
        lines = text.encode().splitlines(keepends=True)
        newline = "\r\n" if "\r\n" in text else "\n"
        own = [edit for edit in self._changed() if edit[0].file == file]
        own.sort(key=lambda edit: edit[0].span)
        # from the end, so that the spans before stay right
        for place, value in reversed(own):
            line, start, end_line, end = place.span
            new = place.template.format(value).replace("\n", newline)
            before = lines[line - 1][:start]
            after = lines[end_line - 1][end:]
            changed = before + new.encode() + after
            lines[line - 1 : end_line] = changed.splitlines(keepends=True)
        return b"".join(lines).decode()

    def diff(self, folder: Path) -> str:
        """Return a unified diff, which `patch -p0` and `git apply` take in the folder."""
        lines = list[str]()
        for file in self.files:
            old = read_text(file)
            name = os.path.relpath(file, folder)
            if name.startswith(".."):
                name = file
            # as `patch` divides lines, which takes no other character for their end
            before = [*io.StringIO(old)]
            after = [*io.StringIO(self.apply(file, old))]
            lines += difflib.unified_diff(before, after, name, name, n=1)
        for index, line in enumerate(lines):
            if not line.endswith("\n"):
                lines[index] = f"{line}\n{_NO_NEWLINE}"
        return "".join(lines)


def read_text(file: str) -> str:
    """Return the text of a Python file, with its own ends of lines."""
    with open(file, "rb") as source:
        encoding, _ = tokenize.detect_encoding(source.readline)
        source.seek(0)
        return source.read().decode(encoding)
