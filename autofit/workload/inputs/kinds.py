"""Open the user's data as one of the kinds of input, and write a config as arguments for it.

To add a kind, write a subclass of `FitInput` and list it in `KINDS`. The classes import Keras, TensorFlow and
torch only in methods that a trial's process calls.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from autofit.errors import UsageError
from autofit.records.description import Description
from autofit.records.knobs import DATA_KNOBS, KNOBS, PROCESSES
from autofit.records.trial import AUTOTUNE, FitConfig
from autofit.workload.inputs.arrays import Arrays
from autofit.workload.inputs.fit_input import FitInput, ReportError
from autofit.workload.inputs.iterators import Generator, Grain, GrainProcesses
from autofit.workload.inputs.knobs import NO_AUTOTUNE, arguments_of, knobs_of, unsupported
from autofit.workload.inputs.pydataset import PyDatasetInput
from autofit.workload.inputs.tfdata import TfData, with_controlled_caches
from autofit.workload.inputs.torch_loader import TorchLoader

KINDS: dict[str, type[FitInput]] = {
    kind.kind: kind for kind in (Arrays, PyDatasetInput, TfData, TorchLoader, Grain, GrainProcesses, Generator)
}


def open_input(data: Any, kwargs: Mapping[str, Any], config: FitConfig, report_error: ReportError) -> FitInput:
    """Make the user's data for a config; raise UsageError if the data or a knob is wrong."""
    names = knobs_of(data, kwargs)
    given = arguments_of(names, config)
    reopen = functools.partial(data, **kwargs, **given) if callable(data) else None
    made = data if reopen is None else with_controlled_caches(reopen)
    if names and reopen is None:  # a ready-made PyDataset, whose knobs are attributes
        made = copy.copy(data)
        for name, value in given.items():
            setattr(made, name, value)
    applied = {knob: given[name] for knob, name in names.items() if name in given}
    kind = next((kind for kind in KINDS.values() if kind.recognises(made)), None)
    if kind is None:
        raise unsupported(made)
    if kind is Grain and names.get("workers") == PROCESSES:
        kind = GrainProcesses
    applied |= {knob: value for knob, value in config.values().items() if knob in kind.fit_knobs}
    autotuned = [knob for knob in DATA_KNOBS if KNOBS[knob].autotunes and applied.get(knob) == AUTOTUNE]
    if autotuned and not kind.autotunes:
        raise UsageError(f"{autotuned[0]} cannot be -1 for {kind.kind} data: {NO_AUTOTUNE}")
    return kind(made, FitConfig.of(applied), report_error, reopen)


def render_kwargs(description: Description, config: FitConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write a config as arguments of the data factory and of `Model.fit`."""
    kind = KINDS[description.input_kind]
    given = _rendered(description, description.knobs, description.required, config)
    to_fit = {description.knobs[knob] for knob in kind.fit_knobs if knob in description.knobs}
    fit_kwargs = {name: value for name, value in given.items() if name in to_fit}
    data_kwargs = {name: value for name, value in given.items() if name not in to_fit or name in description.required}
    return data_kwargs, fit_kwargs


def render_validation(description: Description, config: FitConfig) -> dict[str, Any]:
    """Write a config as arguments of the validation factory."""
    return _rendered(description, description.validation_knobs, description.validation_required, config)


def _rendered(
    description: Description, names: Mapping[str, str], required: Sequence[str], config: FitConfig
) -> dict[str, Any]:
    is_dead = description.input_kind == PyDatasetInput.kind and not config.has_queue  # Keras makes no queue then
    queue = names.get("max_queue_size") if is_dead else None
    return {name: value for name, value in arguments_of(names, config).items() if name != queue or name in required}
