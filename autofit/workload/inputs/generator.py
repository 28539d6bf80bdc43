"""Python generators: a factory returns one; `fit` makes its batches in a single thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from autofit.records.trial import FitConfig
from autofit.workload.inputs.batch import first_of, leaves, length_of
from autofit.workload.inputs.fit_input import FitInput


class Generator(FitInput):
    """The batches of a generator, full ones only; when it ends, the factory makes a new one."""

    kind: ClassVar[str] = "generator"

    def __init__(
        self, data: Any, config: FitConfig, report_error: Callable[[BaseException], None], reopen: Callable[[], Any] | None
    ) -> None:
        assert reopen is not None, "a generator comes from a factory: a ready-made one was refused"
        self._reopen, self._report_error, self.applied = reopen, report_error, FitConfig()
        self._made = 0
        self._keep_first(lambda: first_of(data, "the generator"), "the generator", config.batch_size)
        self._full_length = length_of(leaves(self._batch)[0])

    @staticmethod
    def recognises(data: Any) -> bool:
        """Whether `data` is an iterator."""
        return isinstance(data, Iterator)

    def sample_count(self) -> int | None:
        """None: a generator has no length."""
        return None

    def fit_arguments(self, steps: int) -> dict[str, Any]:
        """One epoch of so many steps."""
        return {"x": self._batches(steps, endless=True)}

    def validation_arguments(self, steps: int) -> dict[str, Any]:
        """So many steps at the most."""
        return {"validation_data": self._batches(steps, endless=False)}

    def look(self) -> Iterator[Any]:
        """Every batch in turn, of a new generator."""
        return (self._as_batch(batch, "the generator") for batch in self._reopen())

    def batches_made(self) -> int | None:
        """Batches that the generators have yielded."""
        return self._made

    def _batches(self, most: int, *, endless: bool) -> Iterator[Any]:
        passed = 0
        while passed < most:
            before = passed
            try:
                for batch in self._reopen():
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
            if not endless or passed == before:
                return

    def _is_partial(self, batch: Any) -> bool:
        """Whether a batch is shorter than the first, where its first axis counts samples."""
        return self._full_length == self.batch_samples and length_of(leaves(batch)[0]) < self.batch_samples
