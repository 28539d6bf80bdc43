"""Trace the train step of a workload, for any batch size if the step accepts any; loads Keras."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from autofit import backends
from autofit.backends.protocol import StepEstimator, TrainStep
from autofit.backends.variables import bytes_of_optimizers
from autofit.records.description import Footprint, GpuEstimate
from autofit.records.machine import Device
from autofit.records.states import Phase
from autofit.trial.worker import gpu_estimates
from autofit.trial.worker.batch_shapes import OneSize, one_size_of_step
from autofit.trial.worker.build import open_training
from autofit.trial.worker.fit_call import FitCall, Run
from autofit.trial.worker.job import TrialContext, first_line
from autofit.trial.worker.keras_versions import distribution_of
from autofit.trial.worker.step_clock import StepClock
from autofit.workload import accumulation, fit_options
from autofit.workload.binding import resolve_reference
from autofit.workload.inputs.batch import is_ragged, leaves, length_of
from autofit.workload.inputs.fit_input import FitInput
from autofit.workload.workload import Workload


class TracedWorkload:
    """The train step, traced for any batch size or for the data's own; a step that cannot be traced is run once."""

    def __init__(
        self,
        context: TrialContext,
        loaded: Workload,
        call: FitCall,
        model: Any,
        data: FitInput,
        batch: Any,
        data_tensors: Sequence[int],
    ) -> None:
        self._context, self._loaded, self._model = context, loaded, model
        self._data_tensors, self._trains = data_tensors, call.method.trains
        self._step: StepEstimator | None = None
        self._multiple_of: int | None = None
        self.problem: str | None = None  # why the memory of the step cannot be estimated; None if it can
        self.one_size: OneSize | None = None  # the only batch size that the step accepts
        context.enter(Phase.ESTIMATING)
        arrays = leaves(batch)
        lengths = {length_of(leaf) for leaf in arrays} - {0}
        attempts: list[tuple[int, bool]] = []
        if not call.method.trains:
            self.problem = f"autofit estimates the memory of training, not of {call.method.name}"
        elif (distribution := distribution_of(model)) is not None:
            self.problem = f"the train step is distributed by {distribution.name}"
        elif len(lengths) > 1 or any(is_ragged(leaf) for leaf in arrays):
            self.problem = "the sizes of the tensors are known only when the step runs"
            attempts = [(data.batch_samples, False)]
        else:
            samples = max(lengths)
            attempts = [(1, True), (samples, True), (samples, False)]  # a model may accept only multiples, or one size
        for multiple, any_size in attempts:
            try:
                self._multiple_of = multiple if any_size else None
                self._step = self._trace(batch, self._multiple_of)
            except Exception as error:
                self.problem = self.problem or first_line(error)
                continue
            if len(attempts) > 1:
                self.problem = None
                self.one_size = None if any_size else one_size_of_step(multiple)
            elif self._fails_for_fewer(call, data):
                self.one_size = one_size_of_step(data.batch_samples)
            return
        step = Run(StepClock(data.batch_samples, math.inf, warm_up=0, steps=1), Phase.FIRST_STEP)
        call.run(context, model, data.fit_arguments(1), [step], ends_by_itself=data.ends_by_itself)

    def _trace(self, batch: Any, multiple_of: int | None) -> StepEstimator:
        step = TrainStep(self._model, batch, self._context.placement.device, multiple_of, self._data_tensors)
        return backends.current().estimator(step)

    def _fails_for_fewer(self, call: FitCall, data: FitInput) -> bool:
        """Return whether the data can make a batch of half the size and the step fails for this batch."""
        if data.batch_samples == 1:
            return False
        try:
            fewer = open_training(self._context.sized(data.batch_samples // 2), self._loaded).batch()
        except Exception:
            return False
        self._context.enter(Phase.ESTIMATING)
        try:
            self._trace(fit_options.with_class_weight(fewer, call.options), None)
        except Exception:
            return True
        return False

    def footprints(self, sizes: Sequence[int]) -> Iterator[Footprint]:
        """Yield memory estimates, as in `StepEstimator.estimates`; yield none if there is a `problem`."""
        if self._step is not None and self.problem is None:
            yield from self._step.estimates(sizes, compile_all=self._context.spec.compile_all)

    def on_gpus(self, gpus: Sequence[Device], sizes: Sequence[int], most: int | None) -> Iterator[GpuEstimate]:
        """Yield the memory on each GPU, as in `gpu_estimates.estimate`; yield none if there is a `problem`."""
        if self._step is not None and self.problem is None:
            yield from gpu_estimates.estimate(self._step, gpus, sizes, self._multiple_of, most)

    def optimizer_bytes(self) -> int:
        """Return the bytes of the variables that the step uses in addition to the model's own."""
        return bytes_of_optimizers(self._model) if self._step is None else self._step.optimizer_bytes

    def accumulates_by(self) -> str:
        """Return `Description.accumulates_by`; empty if the step does not use the optimizer passed to `compile`."""
        if not self._trains:
            return ""
        place = accumulation.place_of(self._model, resolve_reference("build_model", self._loaded.build_model))
        used = self._step is None or self._step.uses_model_optimizer
        return place if used or place == accumulation.BUILD_MODEL else ""
