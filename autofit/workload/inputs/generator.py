"""Python generators: a factory that returns one; `fit` takes it as it is, and makes its batches in a single thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from autofit.errors import UsageError
from autofit.records.trial import FitConfig
from autofit.workload.inputs.batch import checked, first_leaf


class Generator:
    """The batches of a generator, full ones only; when it ends, a new one is asked for.

    Args:
        data: an iterator, what the user's factory returned.
        config: the knobs that the factory was given.
        report_error: called with what the generator raises, in the thread where it raises.
        again: the factory, with its arguments.

    Raises:
        UsageError: there is no batch.
        UnsupportedInputError: a batch is not (x, y) or (x, y, sample_weight) of arrays.
        Exception: what the user's generator raises for the first batch.
    """

    kind: ClassVar[str] = "generator"
    fit_knobs: ClassVar[tuple[str, ...]] = ()
    ends_by_itself: ClassVar[bool] = True

    def __init__(
        self, data: Any, config: FitConfig, report_error: Callable[[BaseException], None], again: Callable[[], Any] | None
    ) -> None:
        assert again is not None, "a generator comes from a factory: a ready-made one was refused"
        self._again, self._report_error, self.applied = again, report_error, FitConfig()
        self._made = 0
        started = time.perf_counter()
        first = next(data, None)
        self.batch_seconds = time.perf_counter() - started
        if first is None:
            raise UsageError("the generator ended before its first batch: there is nothing to train on")
        self._batch = checked(first, "the generator")
        self.batch_samples = len(first_leaf(self._batch))

    @staticmethod
    def recognises(data: Any) -> bool:
        """Whether `data` is an iterator."""
        return isinstance(data, Iterator)

    def knobs(self, named: Mapping[str, str]) -> dict[str, str]:
        """What the factory takes."""
        return dict(named)

    def batch(self) -> tuple[Any, ...]:
        """The first batch."""
        return self._batch

    def sample_count(self) -> int | None:
        """None: a generator does not say how long it is."""
        return None

    def fit_arguments(self, steps: int) -> dict[str, Any]:
        """One epoch of so many steps."""
        return {"x": self._batches(steps, endless=True)}

    def validation_arguments(self, steps: int) -> dict[str, Any]:
        """So many steps at the most."""
        return {"validation_data": self._batches(steps, endless=False)}

    def look(self) -> Iterator[tuple[Any, ...]]:
        """Every batch in turn, of a generator of its own."""
        return (checked(batch, "the generator") for batch in self._again())

    def batches_made(self) -> int | None:
        """Batches that came out of the generator."""
        return self._made

    def _batches(self, most: int, *, endless: bool) -> Iterator[tuple[Any, ...]]:
        passed = 0
        while passed < most:
            before = passed
            try:
                for batch in self._again():
                    self._made += 1
                    if len(first_leaf(batch)) < self.batch_samples and endless:
                        continue
                    passed += 1
                    yield tuple(batch)
                    if passed == most:
                        return
            except GeneratorExit:
                raise
            except BaseException as error:
                self._report_error(error)
                raise
            if not endless or passed == before:
                return
