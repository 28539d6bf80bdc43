"""Open the user's training and validation data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autofit.records.knobs import FitConfig
from autofit.records.states import Phase
from autofit.trial.wire import Message
from autofit.trial.worker.job import TrialContext
from autofit.workload.binding import resolve_reference
from autofit.workload.fit_options import (
    PREDICT,
    VALIDATION_BATCH_SIZE,
    VALIDATION_SPLIT,
)
from autofit.workload.inputs.fit_input import FitInput
from autofit.workload.inputs.kinds import open_input
from autofit.workload.inputs.knobs import is_pydataset
from autofit.workload.inputs.tfdata import reserved
from autofit.workload.script.given import GivenData
from autofit.workload.workload import Workload


def open_data(
    context: TrialContext, loaded: Workload
) -> tuple[FitInput, FitInput | None]:
    """Open the training data, and the validation data, if there is any."""
    context.enter(Phase.OPENING)
    config = context.spec.config

    def opened(data: Any, kwargs: Mapping[str, Any], config: FitConfig) -> FitInput:
        return open_input(data, kwargs, config, context.report_error)

    data = resolve_reference("data", loaded.data)
    size = loaded.fit_kwargs.get(VALIDATION_BATCH_SIZE) or config.batch_size
    of_validation = replace(config, batch_size=size)
    training = opened(data, loaded.data_kwargs, config)
    if isinstance(data, GivenData):
        data.require_asked(config.batch_size, training)
    if loaded.call == PREDICT:
        training = training.without_targets()
    held_out: FitInput | None = None
    if share := loaded.fit_kwargs.get(VALIDATION_SPLIT):
        whole = training
        if of_validation != config:
            whole = opened(data, loaded.data_kwargs, of_validation)
        training = training.split(share)[0]
        held_out = whole.split(share)[1]
    elif loaded.validation is not None:
        validation = resolve_reference("validation", loaded.validation)
        if is_pydataset(validation):
            of_validation = replace(of_validation, batch_size=None)
        held_out = opened(validation, loaded.validation_kwargs, of_validation)
    # what the data's caches take in the user's own run, in addition to this trial's
    if reserved.bytes:
        context.send(Message(reserved_bytes=reserved.bytes))
    return training, held_out
