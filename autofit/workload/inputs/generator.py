"""Python generators as input: a factory returns one, and `fit` draws batches from it in a single thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from autofit.records.trial import FitConfig
from autofit.workload.inputs.batch import first_of, leaves, length_of
from autofit.workload.inputs.fit_input import FitInput


class Generator(FitInput):
    """The full batches of a generator; when it ends, the factory is called for a new one."""

    kind: ClassVar[str] = "generator"

    def _open(self) -> None:
        self.applied, self._made = FitConfig(), 0
        self._keep_first(lambda: first_of(self._data, "the generator"), "the generator", self._config.batch_size)
        self._full_length = length_of(leaves(self._batch)[0])

    @staticmethod
    def recognises(data: Any) -> bool:
        return isinstance(data, Iterator)

    def sample_count(self) -> int | None:
        return None

    def fit_arguments(self, steps: int) -> dict[str, Any]:
        return {"x": self._batches(steps, endless=True)}

    def validation_arguments(self, steps: int) -> dict[str, Any]:
        return {"validation_data": self._batches(steps, endless=False)}

    def look(self) -> Iterator[Any]:
        return (self._as_batch(batch, "the generator") for batch in self._anew())

    def batches_made(self) -> int | None:
        return self._made

    def _anew(self) -> Iterator[Any]:
        assert self._reopen is not None, "a ready-made generator was refused"
        batches: Iterator[Any] = self._reopen()
        return batches

    def _batches(self, most: int, *, endless: bool) -> Iterator[Any]:
        passed = 0
        while passed < most:
            passed_before = passed
            try:
                for batch in self._anew():
                    self._made += 1
                    if endless and self._is_partial(batch):
                        continue
                    passed += 1
                    yield batch
                    if passed == most:
                        return
            except GeneratorExit:
                raise
            except BaseException as error:
                self._report_error(error)
                raise
            if not endless or passed == passed_before:
                return

    def _is_partial(self, batch: Any) -> bool:
        """Return whether a batch has fewer samples than the first; False if the first axis does not count samples."""
        return self._full_length == self.batch_samples and length_of(leaves(batch)[0]) < self.batch_samples
