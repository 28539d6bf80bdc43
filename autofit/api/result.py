"""Results of `tune` and `sweep`: records with methods that print, explain and save them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from autofit.api.session import without_frames
from autofit.errors import UsageError
from autofit.records.description import EstimateRecord
from autofit.records.result import SweepRecord, TuneRecord
from autofit.report import choice, columns, snippet
from autofit.report.adjustments import adjustments_of
from autofit.report.console.tables import (
    estimate_table,
    plain_text,
    summary,
    sweep_table,
)
from autofit.report.html import page
from autofit.storage import result_files


class _Reportable:
    @without_frames
    def report(self: Any, path: result_files.StrPath) -> None:
        """Write a self-contained HTML page that needs no network.

        Raise UsageError if that fails.
        """
        page.save(self, path)

    def _repr_html_(self: Any) -> str:
        return page.compact(self)  # for a notebook


class Result(_Reportable, TuneRecord):
    """The result of a tune: the answers, what ran beside each other, and every trial.

    A `TuneRecord`.

    `print(result)` shows the key figures and the code to paste. `result.same_batch` and
    `result.fastest` are the two answers, each an `Answer`; the attributes of the result itself,
    such as `fit_kwargs`, are those of the fastest.

    Example:
        >>> space = {"batch_size": [32, 256]}
        >>> result = autofit.tune(build_model, arrays, space=space, max_seconds=60, progress=False)
        >>> result.save("result.json")
        >>> result.report("report.html")
        >>> "model.fit(" in result.snippet()  # the code to paste
        True
    """

    @classmethod
    def of(cls, record: TuneRecord) -> Result:
        """Make the result of a record, with the code of each answer."""
        fastest, own = (
            None
            if answer is None
            else replace(
                answer,
                code=snippet.render(record, answer),
                adjustments=adjustments_of(record, answer),
            )
            for answer in (record.fastest, record.same_batch)
        )
        return cls(**{**vars(record), "fastest": fastest, "same_batch": own})

    def __repr__(self) -> str:
        return plain_text(summary(self))

    def snippet(self) -> str:
        """Return Python code that trains the model with the fastest config."""
        return self.fastest.snippet()

    def advice(self) -> dict[str, str]:
        """Return a sentence on each subject that matters, such as the bottleneck and other work on
        the machine.
        """
        return choice.advice(self)

    @without_frames
    def failed(
        self,
        memory: Literal["host", "device"],
        storage: str | None = None,
        *,
        same_batch: bool = False,
    ) -> None:
        """Store that your own training ran out of memory with this result, and drop the stored
        result.

        The next tune of the same request chooses a configuration that takes less of this memory.
        `storage` is that of the tune; UsageError if it does not have the tune. With `same_batch`,
        the answer at your own batch size was trained.
        """
        # loads Optuna, which takes a second
        from autofit.storage.study import mark_failed

        answer = result_files.answer_of(self, same_batch=same_batch)
        mark_failed(self, answer, memory, storage)

    @classmethod
    @without_frames
    def load(cls, path: result_files.StrPath) -> Result:
        """Read the result of a tune from a JSON file; raise UsageError if the file has none."""
        record = result_files.load(path)
        if not isinstance(record, TuneRecord):
            raise UsageError(
                f"{path}: the file has no result of a tune; to look at it, run autofit show {path}"
            )
        return cls.of(record)

    @without_frames
    def save(self, path: result_files.StrPath) -> None:
        """Write the result as a JSON file for `autofit show`, `report` and `kwargs`.

        Raise UsageError if that fails.
        """
        result_files.save(self, path)


class Estimate(EstimateRecord):
    """Estimated memory of a workload for several batch sizes, an `EstimateRecord`.

    `print(estimate)` shows a table.
    """

    def __repr__(self) -> str:
        return plain_text(estimate_table(self))


class SweepResult(_Reportable, SweepRecord):
    """The result of a sweep, a `SweepRecord` with a `Cell` for each combination.

    `print(result)` shows the table.
    """

    def __repr__(self) -> str:
        return plain_text(sweep_table(self))

    @without_frames
    def save(self, path: result_files.StrPath) -> None:
        """Write the sweep as JSON, which `autofit show` reads, and as CSV next to it.

        Raise UsageError if that fails.
        """
        table = result_files.csv_path(path)
        result_files.save(self, path)
        result_files.write(columns.as_csv(self), table)
