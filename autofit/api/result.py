"""What a program gets back: records that can show, explain and save themselves."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass, fields
from types import ModuleType

from autofit.records.result import SweepRecord, TuneRecord
from autofit.report import advice, snippet
from autofit.storage import result_files, sweep_files


def _pages() -> ModuleType:
    """What draws pages; loaded when one is wanted, since it would make the start of everything slower."""
    return importlib.import_module("autofit.report.html.page")


class _Drawn:
    """What can be shown as a page."""

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write it as one HTML page, which opens from disk and loads nothing.

        Raises:
            UsageError: the file cannot be written.
        """
        _pages().save(self, path)

    def _repr_html_(self) -> str:
        """What a notebook shows: the answer, its margins, the lines to paste and the trials; a sweep's table of cells."""
        return str(_pages().compact(self))


@dataclass(frozen=True)
class Result(_Drawn, TuneRecord):
    """The fastest config that fits, its proof, and every trial; see `TuneRecord` for the fields."""

    @classmethod
    def of(cls, record: TuneRecord) -> Result:
        """The same, as what a program gets."""
        return cls(**{field.name: getattr(record, field.name) for field in fields(record)})

    def snippet(self) -> str:
        """Python lines that train with the chosen config."""
        return snippet.render(self)

    def advice(self) -> dict[str, str]:
        """What the result means, in sentences: the bottleneck, the learning rate, the last batch of an epoch."""
        return advice.advice(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result as JSON; `autofit show` and `autofit kwargs` read it.

        Raises:
            UsageError: the file cannot be written.
        """
        result_files.save(self, path)


@dataclass(frozen=True)
class SweepResult(_Drawn, SweepRecord):
    """A sweep: a `Cell` for each combination, with its values and its whole result; see `SweepRecord` for the fields."""

    @classmethod
    def of(cls, record: SweepRecord) -> SweepResult:
        """The same, as what a program gets."""
        return cls(**{field.name: getattr(record, field.name) for field in fields(record)})

    def csv(self) -> str:
        """The table as CSV: a line for each cell."""
        return sweep_files.as_csv(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the sweep as JSON, and its table as CSV beside it; `autofit report` and `autofit show` read the JSON.

        Raises:
            UsageError: they cannot be written.
        """
        sweep_files.save(self, path)
