"""Trace the train step of a workload, for any batch size if the step accepts any; loads Keras."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from autofit import backends
from autofit.backends import absent_gpu
from autofit.backends.protocol import StepEstimator, TrainStep, bytes_of_optimizers
from autofit.records.states import Phase
from autofit.trial.wire import Message
from autofit.trial.worker import gpu_estimates
from autofit.trial.worker.build import Bench, distribution_of
from autofit.trial.worker.fit_call import Run
from autofit.trial.worker.job import first_line
from autofit.trial.worker.step_clock import StepClock
from autofit.workload import accumulation
from autofit.workload.binding import resolve_reference
from autofit.workload.inputs.batch import is_ragged, leaves, length_of


class TracedWorkload:
    """The train step, traced for any batch size or for the data's own; a step that cannot be traced is run once."""

    def __init__(self, bench: Bench, batch: Any, data_tensors: Sequence[int]) -> None:
        self._bench, self._data_tensors = bench, data_tensors
        self._step: StepEstimator | None = None
        self._multiple_of: int | None = None
        self.problem: str | None = None  # why the memory of the step cannot be estimated; None if it can
        self.one_size: int | None = None  # the only batch size that the step accepts
        bench.context.enter(Phase.ESTIMATING)
        method, samples = bench.call.method, bench.data.batch_samples
        arrays = leaves(batch)
        lengths = {length_of(leaf) for leaf in arrays} - {0}
        attempts: list[tuple[int, bool]] = []
        if not method.trains:
            self.problem = f"autofit estimates the memory of training, not of {method.name}"
        elif (distribution := distribution_of(bench.model)) is not None:
            self.problem = f"the train step is distributed by {distribution[0]}"
        elif len(lengths) > 1 or any(is_ragged(leaf) for leaf in arrays):
            self.problem = "the sizes of the tensors are known only when the step runs"
            attempts = [(samples, False)]
        else:
            length = max(lengths)
            attempts = [(1, True), (length, True), (length, False)]  # a model may accept only multiples, or one size
        for multiple, any_size in attempts:
            self._multiple_of = multiple if any_size else None
            try:
                self._step = self._traced(batch)
            except Exception as error:
                self.problem = self.problem or first_line(error)
                continue
            if len(attempts) > 1:
                self.problem, self.one_size = None, None if any_size else multiple
            return
        run = Run(StepClock(samples, math.inf, warm_up=0, steps=1), Phase.FIRST_STEP)
        bench.call.run(bench.model, bench.data.fit_arguments(1), [run], ends_by_itself=bench.data.ends_by_itself)

    def _traced(self, batch: Any) -> StepEstimator:
        device = self._bench.context.placement.device
        return backends.current().estimator(
            TrainStep(self._bench.model, batch, device, self._multiple_of, self._data_tensors)
        )

    def estimates(self, sizes: Sequence[int], samples: int | None) -> Iterator[Message]:
        """Yield the estimates of memory, on this device or on GPUs asked for by name, and last what prevented them."""
        spec, problem, step = self._bench.context.spec, self.problem, self._step
        try:
            if step is not None and problem is None and spec.gpus:
                gpus = absent_gpu.find(spec.gpus)
                for estimate in gpu_estimates.estimate(step, gpus, sizes, self._multiple_of, samples):
                    yield Message(gpus=(estimate,))
            elif step is not None and problem is None:
                for footprint in step.estimates(sizes, compile_all=spec.compile_all):
                    yield Message(footprints=(footprint,))
        except Exception as error:  # a limitation of the estimate: the workload is tuned without an estimate
            problem = first_line(error)
        yield Message(estimate_problem=problem or "")

    def optimizer_bytes(self) -> int:
        """Return the bytes of the variables that the step uses in addition to the model's own."""
        return bytes_of_optimizers(self._bench.model) if self._step is None else self._step.optimizer_bytes

    def accumulates_by(self) -> str:
        """Return `Description.accumulates_by`; empty if the step does not use the optimizer passed to `compile`."""
        if not self._bench.call.method.trains:
            return ""
        place = accumulation.place_of(self._bench.model, resolve_reference("build_model", self._bench.loaded.build_model))
        used = self._step is None or self._step.uses_model_optimizer
        return place if used or place == accumulation.BUILD_MODEL else ""
