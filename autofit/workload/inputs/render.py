"""The arguments that apply a config, as the user writes them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from autofit.records.description import Description
from autofit.records.trial import FitConfig
from autofit.workload.inputs.indexed import IndexedInput
from autofit.workload.inputs.knobs import arguments_of
from autofit.workload.inputs.open import KINDS


def render_kwargs(
    description: Description, config: FitConfig, sample_count: int | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments that apply a config: (data_kwargs for the data factory, fit_kwargs for `Model.fit`).

    A queue that Keras does not make is left out where the factory allows.

    Args:
        description: of the workload.
        config: the knobs.
        sample_count: samples in an epoch, if the user gives them because the data has no length: for `steps_per_epoch`.
    """
    kind = KINDS[description.input_kind]
    given = _rendered(description, description.knobs, description.required, config)
    to_fit = {description.knobs[knob] for knob in kind.fit_knobs if knob in description.knobs}
    fit_kwargs = {name: value for name, value in given.items() if name in to_fit}
    to_factory = set(given) - to_fit | set(description.required)
    data_kwargs = {name: value for name, value in given.items() if name in to_factory}
    if sample_count is not None and config.batch_size is not None:
        fit_kwargs["steps_per_epoch"] = math.ceil(sample_count / config.batch_size)
    return data_kwargs, fit_kwargs


def render_validation(description: Description, config: FitConfig) -> dict[str, Any]:
    """The arguments that apply a config to the validation data; a queue that Keras does not make is left out, too."""
    return _rendered(description, description.validation_knobs, description.validation_required, config)


def _rendered(
    description: Description, names: Mapping[str, str], required: Sequence[str], config: FitConfig
) -> dict[str, Any]:
    """Those of `arguments_of` that have an effect or no default."""
    given = arguments_of(names, config)
    queue = names.get("max_queue_size")
    is_indexed = issubclass(KINDS[description.input_kind], IndexedInput)
    if is_indexed and not config.has_queue and queue in given and queue not in required:
        del given[queue]
    return given
