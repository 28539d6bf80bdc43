"""`keras.utils.PyDataset`: all knobs are arguments of its constructor (Keras 3 takes none of them in `fit`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from autofit.errors import UsageError
from autofit.records.trial import FitConfig
from autofit.workload.inputs.indexed import IndexedInput
from autofit.workload.inputs.prebuilt import is_pydataset

_WORKER_KNOBS = ("workers", "max_queue_size", "use_multiprocessing")


class PyDatasetInput(IndexedInput):
    """A PyDataset; the knobs of the config must have arrived in it."""

    kind: ClassVar[str] = "PyDataset"

    def __init__(
        self, data: Any, config: FitConfig, report_error: Callable[[BaseException], None], reopen: Callable[[], Any] | None
    ) -> None:
        for knob in _WORKER_KNOBS:
            asked, got = getattr(config, knob), getattr(data, knob)
            if asked is not None and asked != got:
                raise UsageError(
                    f"the PyDataset was given {knob}={asked} but has {knob}={got}: "
                    f"its __init__ must pass {knob} on, as in super().__init__(**kwargs)"
                )
        self.applied = FitConfig(None, *(getattr(data, knob) for knob in _WORKER_KNOBS))
        super().__init__(data, config, report_error, reopen)

    @staticmethod
    def recognises(data: Any) -> bool:
        """Whether `data` is a `keras.utils.PyDataset`."""
        return is_pydataset(data)

    def knobs(self, named: Mapping[str, str]) -> dict[str, str]:
        """What the factory takes, without a queue that no worker fills."""
        is_dead = "workers" not in named and "use_multiprocessing" not in named and self.applied.workers in (0, 1)
        return {knob: name for knob, name in named.items() if not (is_dead and knob == "max_queue_size")}

    def as_step_data(self, batch: Any) -> Any:
        """A batch as Keras passes it on: an array becomes a tuple of one, a list a tuple."""
        if isinstance(batch, dict):
            return batch
        return tuple(batch) if isinstance(batch, tuple | list) else (batch,)

    def _batch_count(self) -> int | None:
        count: int | None = self._data.num_batches
        return count

    def _proxy(self, length: int) -> Any:
        from autofit.workload.inputs.keras_wrappers import KerasProxy  # loads Keras: must stay out of the parent

        return KerasProxy(self._data, length, self._report_error)
