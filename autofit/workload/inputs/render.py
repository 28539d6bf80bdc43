"""The arguments that apply a config, as they are written down."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from autofit.records.trial import Description, FitConfig
from autofit.workload.inputs.knobs import arguments_of
from autofit.workload.inputs.open import KINDS
from autofit.workload.inputs.pydataset import PyDatasetInput
from autofit.workload.inputs.sequence import SequenceInput


def render_validation(description: Description, config: FitConfig) -> dict[str, Any]:
    """The arguments that apply a config to the validation data, without a queue as in `render_kwargs`."""
    return _written(description, description.validation_knobs, description.validation_required, config)


def _written(
    description: Description, names: Mapping[str, str], required: Sequence[str], config: FitConfig
) -> dict[str, Any]:
    """Those of `arguments_of` that do something, or have no default."""
    given = arguments_of(names, config)
    queue = names.get("max_queue_size")
    is_dead = KINDS[description.input_kind] in (PyDatasetInput, SequenceInput) and not config.has_queue
    if is_dead and queue in given and queue not in required:
        del given[queue]
    return given


def render_kwargs(
    description: Description, config: FitConfig, sample_count: int | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments that apply a config: (data_kwargs for the data factory, fit_kwargs for `Model.fit`).

    A queue that Keras does not make is left out where the factory allows.

    Args:
        description: of the workload.
        config: the knobs.
        sample_count: samples in an epoch where the user says how many, since the data does not: it gives `steps_per_epoch`.
    """
    kind = KINDS[description.input_kind]
    given = _written(description, description.knobs, description.required, config)
    to_fit = {description.knobs[knob] for knob in kind.fit_knobs if knob in description.knobs}
    fit_kwargs = {name: value for name, value in given.items() if name in to_fit}
    to_factory = set(given) - to_fit | set(description.required)
    data_kwargs = {name: value for name, value in given.items() if name in to_factory}
    if sample_count is not None and config.batch_size is not None:
        fit_kwargs["steps_per_epoch"] = math.ceil(sample_count / config.batch_size)
    return data_kwargs, fit_kwargs
