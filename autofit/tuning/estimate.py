"""Estimate the memory of a workload for several batch sizes without training it.

TuneRequest ──> describe (build the model, read one batch, trace the train step) ──> EstimateRecord
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autofit.errors import NoTrialFinishedError
from autofit.records.description import (
    Description,
    EstimateRecord,
    EstimateRow,
    Footprint,
)
from autofit.records.events import Emit
from autofit.records.knobs import FitConfig
from autofit.records.machine import Device
from autofit.search.context import ConfigArrays, SearchContext
from autofit.search.memory import Memory, host_bytes_by_part
from autofit.search.space import batch_grid
from autofit.trial.launcher import Launcher
from autofit.tuning.request import TuneRequest
from autofit.tuning.runner import TrialRunner, not_described

# upper end of the grid in which the largest batch size that fits is searched
_LARGEST_BATCH = 2**16


def estimate(
    request: TuneRequest,
    launcher: Launcher,
    emit: Emit,
    batch_sizes: Sequence[int],
    gpus: Sequence[Device] = (),
) -> EstimateRecord:
    """Estimate the memory for each batch size, and the largest that is expected to fit; with
    `gpus`, those of each GPU.
    """
    sizes = tuple(sorted(set(batch_sizes)))
    names = tuple(gpu.name for gpu in gpus)
    runner = TrialRunner(request, launcher, emit)
    described = runner.describe(
        request.asked_baseline, batch_sizes=sizes, compile_all=True, gpus=names
    )
    if not isinstance(described, Description):
        raise not_described(described, runner.budget)
    baseline = request.baseline(described)
    device = request.placement.name
    rows = list[EstimateRow]()
    largest = None
    if described.gpus:
        device = ", ".join(names)
        if not any(gpu.footprints for gpu in described.gpus):
            problem = described.gpus[0].problem
            raise NoTrialFinishedError(
                f"memory cannot be estimated for {device}: {problem}"
            )
    elif not described.footprints:
        raise NoTrialFinishedError(
            f"memory cannot be estimated without training: {described.estimate_problem}. "
            "To measure it, run autofit tune"
        )
    else:
        baseline = FitConfig.of(
            {
                knob: value
                for knob, value in baseline.values().items()
                if knob in described.knobs
            }
        )
        estimates = _Estimates(request, described, baseline)
        rows = [estimates.row(footprint) for footprint in described.footprints]
        highest = min(described.sample_count or _LARGEST_BATCH, _LARGEST_BATCH)
        grid = {*batch_grid(1, highest), *sizes}
        largest = max(filter(estimates.fits, grid), default=None)
    return EstimateRecord(
        described,
        baseline,
        request.limits,
        request.machine,
        device,
        tuple(rows),
        largest,
    )


class _Estimates:
    """Estimates the memory of a described workload with a config, for any batch size."""

    def __init__(
        self, request: TuneRequest, described: Description, config: FitConfig
    ) -> None:
        self._described = described
        self._config = config
        self._limits = request.limits
        self._cores = request.machine.cores
        self._on_cpu = request.placement.device is None
        self._memory = Memory(
            SearchContext(described, self._limits, self._cores, self._on_cpu)
        )

    def row(self, footprint: Footprint) -> EstimateRow:
        size = footprint.batch_size
        step_bytes = footprint.step_bytes if self._on_cpu else 0
        sized = replace(self._config, batch_size=size)
        return EstimateRow(
            size,
            dict(footprint.device_bytes_by_part),
            host_bytes_by_part(self._described, sized, step_bytes, self._cores),
            *self._upper_bytes(size),
            self.fits(size),
        )

    def fits(self, batch_size: int) -> bool:
        return self._limits.allow(*self._upper_bytes(batch_size))

    def _upper_bytes(self, batch_size: int) -> tuple[int, int]:
        sized = replace(self._config, batch_size=batch_size)
        device, host = self._memory.upper_bytes(ConfigArrays([sized], self._cores))[
            :, 0
        ]
        return round(device), round(host)
