"""`torch.utils.data.DataLoader`: a factory returns one; its knobs are `batch_size`, `num_workers` and `prefetch_factor`.

Its workers are processes, and each has `prefetch_factor` batches ahead. Keras takes it on every backend.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from autofit.errors import UsageError
from autofit.records.trial import FitConfig
from autofit.workload.inputs.batch import first_of
from autofit.workload.inputs.fit_input import FitInput
from autofit.workload.inputs.knobs import PREFETCH_FACTOR
from autofit.workload.inputs.prebuilt import is_torch_loader

_SOURCE = "the torch DataLoader"
_NAMES = {"workers": "num_workers", "prefetch_factor": "prefetch_factor"}  # of its arguments


class TorchLoader(FitInput):
    """The user's DataLoader under one config; `fit` sees one of the wanted length, with full batches only."""

    kind: ClassVar[str] = "torch DataLoader"
    has_processes: ClassVar[bool] = True

    def __init__(
        self, data: Any, config: FitConfig, report_error: Callable[[BaseException], None], reopen: Callable[[], Any] | None
    ) -> None:
        self._data, self._report_error = data, report_error
        arrived = {"workers": data.num_workers, "prefetch_factor": data.prefetch_factor}
        for knob, value in arrived.items():
            asked = getattr(config, knob)
            is_given = knob == "workers" or data.num_workers > 0  # without workers there is no prefetch_factor
            if is_given and asked not in (None, value):
                name = _NAMES[knob]
                raise UsageError(
                    f"the DataLoader was given {name}={asked} but has {name}={value}: its factory must pass {name} on"
                )
        factor = data.prefetch_factor or config.prefetch_factor or PREFETCH_FACTOR
        self.applied = FitConfig(None, data.num_workers, None, True, factor)
        # of the context of its workers: a lock of another one cannot be handed to them
        self._made = (data.multiprocessing_context or multiprocessing).Value("q", 0)
        self._length = _length_of(data)
        self._keep_first(lambda: first_of(iter(self._copy(num_workers=0)), _SOURCE), _SOURCE, config.batch_size)

    @staticmethod
    def recognises(data: Any) -> bool:
        """Whether `data` is a `torch.utils.data.DataLoader`."""
        return is_torch_loader(data)

    def knobs(self, named: Mapping[str, str]) -> dict[str, str]:
        """What the factory takes, without the queue of Keras, which a DataLoader does not have."""
        return {knob: name for knob, name in named.items() if knob != "max_queue_size"}

    def as_step_data(self, batch: Any) -> Any:
        """A batch as Keras passes it on: a list becomes a tuple."""
        return tuple(batch) if isinstance(batch, tuple | list) else batch

    def sample_count(self) -> int | None:
        """Samples of an epoch, the last batch included; None for a stream of unknown length."""
        if self._length is None:
            return None
        samples = self._length * self.batch_samples
        draws_samples = self._data.batch_size is not None and hasattr(self._data.sampler, "__len__")
        return min(samples, len(self._data.sampler)) if draws_samples else samples

    def fit_arguments(self, steps: int) -> dict[str, Any]:
        """One epoch of so many steps."""
        loader = self._copy(batches=steps)
        return {"x": loader} if _length_of(loader) == steps else {"x": loader, "steps_per_epoch": steps}

    def validation_arguments(self, steps: int) -> dict[str, Any]:
        """So many steps at the most, and no more than the loader has."""
        loader = self._copy()
        return {
            "validation_data": loader,
            **({} if self._length and self._length <= steps else {"validation_steps": steps}),
        }

    def look(self) -> Iterator[Any]:
        """Every batch in turn, made in this process."""
        return (self._as_batch(batch, _SOURCE) for batch in self._copy(num_workers=0))

    def batches_made(self) -> int | None:
        """Batches that were put together, in all processes."""
        return int(self._made.value)

    def _copy(self, *, batches: int | None = None, num_workers: int | None = None) -> Any:
        """The loader anew: with so many full batches, or with another number of workers; errors are reported."""
        from autofit.workload.inputs.torch_wrappers import copy_of  # loads torch: must stay out of the parent

        return copy_of(self._data, self._made, self._report_error, batches, num_workers)


def _length_of(loader: Any) -> int | None:
    """Batches of an epoch; None where the dataset has no length."""
    try:
        return len(loader)
    except TypeError:
        return None
