"""Estimate the memory of a workload for several batch sizes without training it.

TuneRequest ──> describe (build the model, read one batch, trace the train step) ──> EstimateRecord
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autofit.errors import NoTrialFinishedError
from autofit.records.description import Description, EstimateRecord, EstimateRow
from autofit.records.events import Emit
from autofit.records.machine import Device
from autofit.records.trial import FitConfig
from autofit.search.context import ConfigArrays, SearchContext
from autofit.search.memory import Memory, host_bytes_by_part
from autofit.search.space import batch_grid
from autofit.trial.launcher import Launcher
from autofit.tuning.request import TuneRequest
from autofit.tuning.runner import TrialRunner, not_described

_LARGEST_BATCH = (
    2**16
)  # upper end of the grid in which the largest batch size that fits is searched


def estimate(
    request: TuneRequest,
    launcher: Launcher,
    emit: Emit,
    batch_sizes: Sequence[int],
    gpus: Sequence[Device] = (),
) -> EstimateRecord:
    """Estimate the memory for each batch size, and the largest that is expected to fit; with `gpus`, those of each GPU."""
    sizes, names, limits = (
        tuple(sorted(set(batch_sizes))),
        tuple(gpu.name for gpu in gpus),
        request.limits,
    )
    runner = TrialRunner(request, launcher, emit)
    described = runner.describe(
        request.asked_baseline, batch_sizes=sizes, compile_all=True, gpus=names
    )
    if not isinstance(described, Description):
        raise not_described(described, runner.budget)
    if described.gpus:
        if not any(gpu.footprints for gpu in described.gpus):
            raise NoTrialFinishedError(
                f"memory cannot be estimated for {', '.join(names)}: {described.gpus[0].problem}"
            )
        return EstimateRecord(
            described,
            request.baseline(described),
            limits,
            request.machine,
            ", ".join(names),
            (),
            None,
        )
    if not described.footprints:
        raise NoTrialFinishedError(
            f"memory cannot be estimated without training: {described.estimate_problem}. To measure it, run autofit tune"
        )
    on_cpu = request.placement.device is None
    baseline, cores = request.baseline(described), request.machine.cores
    config = FitConfig.of(
        {knob: value for knob, value in baseline.values().items() if knob in described.knobs}
    )
    memory = Memory(SearchContext(described, limits, cores, on_cpu))

    def upper_bytes(batch_size: int) -> tuple[int, int]:
        device, host = memory.upper_bytes(
            ConfigArrays([replace(config, batch_size=batch_size)], cores)
        )[:, 0]
        return round(device), round(host)

    rows = []
    for footprint in described.footprints:
        sized = replace(config, batch_size=footprint.batch_size)
        parts = host_bytes_by_part(described, sized, footprint.step_bytes if on_cpu else 0, cores)
        device, host = upper_bytes(footprint.batch_size)
        by_part = dict(footprint.device_bytes_by_part), parts
        rows.append(
            EstimateRow(footprint.batch_size, *by_part, device, host, limits.allow(device, host))
        )
    grid = batch_grid(1, min(described.sample_count or _LARGEST_BATCH, _LARGEST_BATCH))
    largest = max(
        (size for size in {*grid, *sizes} if limits.allow(*upper_bytes(size))), default=None
    )
    return EstimateRecord(
        described, config, limits, request.machine, request.placement.name, tuple(rows), largest
    )
