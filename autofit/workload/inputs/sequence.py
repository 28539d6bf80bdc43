"""`tf_keras.utils.Sequence` (Keras 2): the batch size is the factory's, all other knobs are arguments of `fit`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from autofit.records.trial import FitConfig
from autofit.workload.inputs.indexed import IndexedInput
from autofit.workload.inputs.prebuilt import has_base


class SequenceInput(IndexedInput):
    """A Sequence; the config holds the knobs of `fit`, too."""

    kind: ClassVar[str] = "Sequence"
    fit_knobs: ClassVar[tuple[str, ...]] = ("workers", "max_queue_size", "use_multiprocessing")

    def __init__(
        self, data: Any, config: FitConfig, report_error: Callable[[BaseException], None], reopen: Callable[[], Any] | None
    ) -> None:
        self.applied = replace(config, batch_size=None)
        super().__init__(data, config, report_error, reopen)

    @staticmethod
    def recognises(data: Any) -> bool:
        """Whether `data` is a `tf_keras.utils.Sequence`."""
        return has_base(data, "tf_keras", "Sequence")

    def knobs(self, named: Mapping[str, str]) -> dict[str, str]:
        """The factory's batch size, and what `fit` takes."""
        return {**{k: v for k, v in named.items() if k == "batch_size"}, **{knob: knob for knob in self.fit_knobs}}

    def fit_arguments(self, steps: int) -> dict[str, Any]:
        """One epoch of so many steps, with the knobs."""
        given = {knob: getattr(self.applied, knob) for knob in self.fit_knobs}
        return {**super().fit_arguments(steps), **{knob: value for knob, value in given.items() if value is not None}}

    def as_step_data(self, batch: Any) -> Any:
        """A batch as Keras 2 packs it: an x without targets is not in a tuple, unless it is a tuple or list of arrays."""
        parts = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
        return parts[0] if len(parts) == 1 and not isinstance(parts[0], tuple | list) else parts

    def _batch_count(self) -> int:
        return len(self._data)

    def _proxy(self, length: int) -> Any:
        from autofit.workload.inputs.tf_keras_wrappers import SequenceProxy  # loads tf_keras: must stay out of the parent

        return SequenceProxy(self._data, length, self._report_error)
