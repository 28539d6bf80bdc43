"""Trace the train step of a workload and estimate its memory, here or on GPUs that need not be there; loads Keras."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autofit import backends
from autofit.backends import absent_gpu
from autofit.backends.protocol import StepEstimator, TrainStep
from autofit.records import cuda_memory
from autofit.records.description import Footprint, GpuEstimate
from autofit.records.machine import Device
from autofit.records.states import Phase
from autofit.trial.wire import Message
from autofit.trial.worker.bench import Bench, Run, distribution_of
from autofit.trial.worker.job import TrialContext, first_line
from autofit.trial.worker.step_clock import StepClock
from autofit.workload.inputs.batch import is_ragged, leaves, length_of

_FIRST_SIZES = (8, 32)  # two sizes define a line
_MOST_ROUNDS = 5  # of compilations near the largest batch
_CLOSE_SHARE = 0.03  # of the memory: a batch that leaves less is the largest
_LARGEST_BATCH = 2**20
_DIGITS = 5  # binary digits of a size in the search, as a multiple of what the step takes


@dataclass(frozen=True)
class TracedStep:
    """The train step, traced for batch sizes that are multiples of a number, or for the data's own size alone."""

    estimator: StepEstimator | None  # None if it could not be traced
    multiple_of: int | None = None
    problem: str = ""  # why its memory cannot be estimated; empty if it can
    one_size: int | None = None  # the only batch size that it accepts

    def send_estimates(
        self, context: TrialContext, sizes: Sequence[int], samples: int | None
    ) -> None:
        """Send the estimates of memory, on this device or on GPUs asked for by name, and last what prevented them."""
        spec = context.spec
        problem = self.problem
        try:
            if self.estimator is not None and not problem:
                for gpu in absent_gpu.find(spec.gpus):
                    context.send(
                        Message(
                            gpus=(on_gpu(self.estimator, gpu, sizes, self.multiple_of, samples),)
                        )
                    )
                for footprint in (
                    ()
                    if spec.gpus
                    else self.estimator.estimates(sizes, compile_all=spec.compile_all)
                ):
                    context.send(Message(footprints=(footprint,)))
        except (
            Exception
        ) as error:  # a limitation of the estimate: the workload is tuned without an estimate
            problem = first_line(error)
        context.send(Message(estimate_problem=problem))


def trace(bench: Bench, batch: Any, data_tensors: Sequence[int]) -> TracedStep:
    """Trace the step; run it once if it cannot be traced."""
    bench.context.enter(Phase.ESTIMATING)
    method = bench.method
    device = bench.context.placement.device
    distribution = distribution_of(bench.model)
    arrays = leaves(batch)
    lengths = {length_of(leaf) for leaf in arrays} - {0}
    problem = ""
    # a model may accept only multiples of a size, or one size
    attempts = [1, max(lengths), None]
    if not method.trains:
        problem = f"autofit estimates the memory of training, not of {method.name}"
        attempts = []
    elif distribution is not None:
        problem = f"the train step is distributed by {distribution[0]}"
        attempts = []
    elif len(lengths) > 1 or any(map(is_ragged, arrays)):
        problem = "the sizes of the tensors are known only when the step runs"
        attempts = [None]
    errors = []
    for multiple in attempts:
        try:
            step = backends.current().estimator(
                TrainStep(bench.model, batch, device, multiple, data_tensors)
            )
        except Exception as error:
            errors.append(first_line(error))
            continue
        return TracedStep(step, multiple, problem, None if problem or multiple else max(lengths))
    run = Run(StepClock(bench.data.batch_samples, math.inf, steps=1), Phase.FIRST_STEP)
    bench.run(bench.data.fit_arguments(1), [run], ends_by_itself=bench.data.ends_by_itself)
    return TracedStep(None, problem=problem or errors[0])


def on_gpu(
    step: StepEstimator,
    gpu: Device,
    sizes: Sequence[int],
    multiple_of: int | None,
    most: int | None,
) -> GpuEstimate:
    """Estimate a step's memory on a GPU: for the given batch sizes, and near the largest one that fits, up to `most`."""
    total = gpu.total_bytes
    problem = ""
    # a backend that takes what it needs gets all but a context
    usable = min(total - cuda_memory.CONTEXT_BYTES, backends.current().pool_bytes(gpu) or total)
    footprints = {}
    if multiple_of is not None:
        sizes = sorted(
            {math.ceil(size / multiple_of) * multiple_of for size in (*sizes, *_FIRST_SIZES)}
        )
    try:
        for size in sizes:
            footprints[size] = step.on_gpu(gpu, size)
            if footprints[size].upper_bytes > usable:
                break  # what is larger does not fit either
        for _ in range(_MOST_ROUNDS if multiple_of else 0):
            size = _nearer(footprints, usable, multiple_of or 1, most or _LARGEST_BATCH)
            if size in footprints:
                break
            footprints[size] = step.on_gpu(gpu, size)
    except Exception as error:  # a limitation of the compiler for this GPU
        problem = first_line(error)
    largest = max(
        (size for size in footprints if footprints[size].upper_bytes <= usable), default=None
    )
    by_size = tuple(footprints[size] for size in sorted(footprints))
    return GpuEstimate(gpu.name, total, usable, by_size, largest, problem)


def _nearer(footprints: Mapping[int, Footprint], usable: int, multiple: int, most: int) -> int:
    """Return the size that takes `usable` bytes on the line through two in `footprints`; one of these if none is better."""
    fitting = sorted(size for size in footprints if footprints[size].upper_bytes <= usable)
    if not fitting:
        return multiple
    largest = fitting[-1]
    room = usable - footprints[largest].upper_bytes
    if room < _CLOSE_SHARE * usable:
        return largest
    others = sorted(size for size in footprints if size > largest)[:1] or fitting[-2:-1]
    slope = sum(
        (footprints[other].upper_bytes - footprints[largest].upper_bytes) / (other - largest)
        for other in others
    )
    size = min(math.floor(largest + room / slope if slope > 0 else 2 * largest), most)
    unit = multiple << max(0, (size // multiple).bit_length() - _DIGITS)
    return max(largest, size // unit * unit)
