"""Trace a train step and estimate its memory, also on GPUs that are not there; loads Keras."""

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
from autofit.trial.worker.bench import Bench
from autofit.trial.worker.job import TrialContext, first_line
from autofit.trial.worker.plan import Plan
from autofit.workload.inputs.batch import is_ragged, leaves, length_of

_FIRST_SIZES = (8, 32)  # two sizes define a line
_MOST_ROUNDS = 5  # of compilations near the largest batch
_CLOSE_SHARE = 0.03  # of the memory: a batch that leaves less is the largest
_LARGEST_BATCH = 2**20
# binary digits of a size in the search, as a multiple of what the step takes
_DIGITS = 5


@dataclass(frozen=True)
class TracedStep:
    """The train step, traced for multiples of a batch size, or for the data's own size alone."""

    estimator: StepEstimator | None  # None if it could not be traced
    multiple_of: int | None = None
    problem: str = ""  # why its memory cannot be estimated; empty if it can
    one_size: int | None = None  # the only batch size that it accepts

    def send_estimates(
        self, context: TrialContext, sizes: Sequence[int], samples: int | None
    ) -> None:
        """Send the estimates of memory, on this device or on the GPUs that were asked for.

        What prevented them is sent last.
        """
        problem = self.problem
        spec = context.spec
        step = self.estimator
        if step is not None and not problem:
            try:
                for gpu in absent_gpu.find(spec.gpus):
                    estimate = on_gpu(step, gpu, sizes, self.multiple_of, samples)
                    context.send(Message(gpus=(estimate,)))
                if not spec.gpus:
                    for footprint in step.estimates(
                        sizes, compile_all=spec.compile_all
                    ):
                        context.send(Message(footprints=(footprint,)))
            # a limitation of the estimate: the workload is tuned without an estimate
            except Exception as error:
                problem = first_line(error)
        context.send(Message(estimate_problem=problem))


def trace(bench: Bench, batch: Any, data_tensors: Sequence[int]) -> TracedStep:
    """Trace the step; run it once if it cannot be traced."""
    bench.context.enter(Phase.ESTIMATING)
    method = bench.method
    device = bench.context.placement.device
    backend = backends.current()
    distribution = backend.distribution_of(bench.model)
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
            step = backend.estimator(
                TrainStep(bench.model, batch, device, multiple, data_tensors)
            )
        except Exception as error:
            errors.append(first_line(error))
            continue
        one_size = None if problem or multiple else max(lengths)
        return TracedStep(step, multiple, problem, one_size)
    bench.play(Plan.of_one_step(bench.data, bench.data.batch_samples, Phase.FIRST_STEP))
    return TracedStep(None, problem=problem or errors[0])


def on_gpu(
    step: StepEstimator,
    gpu: Device,
    sizes: Sequence[int],
    multiple_of: int | None,
    most: int | None,
) -> GpuEstimate:
    """Estimate a step's memory on a GPU, for batch sizes up to one near the largest that fits.

    The given sizes are among them, and none that is searched is larger than `most`.
    """
    total = gpu.total_bytes
    problem = ""
    # a backend that takes what it needs gets all but a context
    usable = min(
        total - cuda_memory.CONTEXT_BYTES, backends.current().pool_bytes(gpu) or total
    )
    footprints: dict[int, Footprint] = {}
    if multiple_of is not None:
        wanted = (*sizes, *_FIRST_SIZES)
        sizes = sorted({math.ceil(size / multiple_of) * multiple_of for size in wanted})
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
    largest = max(_fitting(footprints, usable), default=None)
    by_size = tuple(footprints[size] for size in sorted(footprints))
    return GpuEstimate(gpu.name, total, usable, by_size, largest, problem)


def _fitting(footprints: Mapping[int, Footprint], usable: int) -> list[int]:
    return sorted(size for size in footprints if footprints[size].upper_bytes <= usable)


def _nearer(
    footprints: Mapping[int, Footprint], usable: int, multiple: int, most: int
) -> int:
    """Return the size that takes `usable` bytes, on the line through two of the footprints.

    It is a size that they have if none is better.
    """
    fitting = _fitting(footprints, usable)
    if not fitting:
        return multiple
    largest = fitting[-1]
    largest_bytes = footprints[largest].upper_bytes
    room = usable - largest_bytes
    if room < _CLOSE_SHARE * usable:
        return largest
    larger = sorted(size for size in footprints if size > largest)
    slope = 0.0
    for other in larger[:1] or fitting[-2:-1]:
        slope = (footprints[other].upper_bytes - largest_bytes) / (other - largest)
    size = math.floor(largest + room / slope) if slope > 0 else 2 * largest
    size = min(size, most)
    digits = (size // multiple).bit_length()
    unit = multiple << max(0, digits - _DIGITS)
    return max(largest, size // unit * unit)
