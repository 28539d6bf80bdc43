"""Open the user's data as one of the kinds of input, and write a config as arguments for it."""
# To add a kind, write a subclass of `FitInput` and list it in `KINDS`. The classes import Keras,
# TensorFlow and torch only in methods that a trial's process calls.

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from autofit.errors import UsageError
from autofit.records.description import Description
from autofit.records.knobs import PROCESSES, FitConfig
from autofit.workload.inputs.arrays import Arrays
from autofit.workload.inputs.batch import is_array, leaves
from autofit.workload.inputs.fit_input import FitInput, ReportError
from autofit.workload.inputs.iterators import Generator, Grain, GrainProcesses
from autofit.workload.inputs.knobs import arguments_of, knobs_of, parameters_of
from autofit.workload.inputs.pydataset import PyDatasetInput
from autofit.workload.inputs.tfdata import TfData, with_controlled_caches
from autofit.workload.inputs.torch_loader import TorchLoader
from autofit.workload.reference import Reference

KINDS: dict[str, type[FitInput]] = {
    kind.kind: kind
    for kind in (
        Arrays,
        PyDatasetInput,
        TfData,
        TorchLoader,
        Grain,
        GrainProcesses,
        Generator,
    )
}


def recognise(data: Any) -> type[FitInput] | None:
    """Return the kind that data is of; None for what Keras does not take, and for factories."""
    return next((kind for kind in KINDS.values() if kind.recognises(data)), None)


def _kind_of(data: Any) -> type[FitInput]:
    kind = recognise(data)
    if kind is not None:
        return kind
    wrong = next((leaf for leaf in leaves(data) if not is_array(leaf)), data)
    raise UsageError(
        f"the data has a {type(wrong).__module__}.{type(wrong).__qualname__}; give arrays x, (x, "
        "y) or "
        "(x, y, sample_weight) (numpy.array(...) makes one from a list), or a function that "
        "returns such arrays, a "
        "keras.utils.PyDataset, a tf.data.Dataset, a torch DataLoader, a grain dataset or a "
        "generator"
    )


def refuse_unsupported(data: Any) -> None:
    """Refuse a data object that no trial could use, and say how to write a factory for it."""
    if data is None or callable(data) or isinstance(data, Reference):
        return
    kind = _kind_of(data)
    if not kind.fit_makes_batches and not knobs_of(data, {}):
        name = kind.source.rpartition("the ")[2]
        parameters, returned = kind.factory
        raise UsageError(
            f"autofit can set nothing of this {name}. Pass a function that makes it; the "
            f"knobs among its parameters are tuned:\n\n    def make_data({parameters}):\n        "
            f"return {returned}\n"
        )


def open_input(
    data: Any, kwargs: Mapping[str, Any], config: FitConfig, report_error: ReportError
) -> FitInput:
    """Make the user's data for a config; raise UsageError if the data or a knob is wrong."""
    names = knobs_of(data, kwargs)
    given = arguments_of(names, config)
    reopen = functools.partial(data, **kwargs, **given) if callable(data) else None
    try:
        made = data if reopen is None else with_controlled_caches(reopen)
    except TypeError as error:
        callee, is_unknown, _ = str(error).partition(
            "() got an unexpected keyword argument 'batch_size'"
        )
        if not is_unknown or names.get("batch_size") in (None, *parameters_of(data)):
            raise  # it does not come from `**kwargs`
        taker = f"{callee.removesuffix('.__init__')}, which does not take it"
        raise UsageError(
            f"the data passes batch_size on to {taker}; add a parameter batch_size to the data"
        ) from None
    if names and reopen is None:  # a ready-made PyDataset, whose knobs are attributes
        made = copy.copy(data)
        for name, value in given.items():
            setattr(made, name, value)
    kind = _kind_of(made)
    if kind is Grain and names.get("workers") == PROCESSES:
        kind = GrainProcesses
    applied = (
        config
        if kind.fit_makes_batches
        else FitConfig.of({knob: given.get(name) for knob, name in names.items()})
    )
    return kind(made, applied, report_error, reopen)


def render_kwargs(
    description: Description, config: FitConfig
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write a config as arguments of the data factory and of `Model.fit`."""
    given = rendered(
        description.input_kind, description.knobs, description.required, config
    )
    # `fit` makes the batches, even if a factory takes their size, too
    if KINDS[description.input_kind].fit_makes_batches:
        return {
            name: value for name, value in given.items() if name in description.required
        }, given
    return given, {}


def rendered(
    kind: str, names: Mapping[str, str], required: Sequence[str], config: FitConfig
) -> dict[str, Any]:
    """Write a config as arguments of a factory, which names the knobs and requires some of them."""
    # without a queue, Keras has no use for its size
    is_dead = KINDS[kind].keras_starts_workers and not config.has_queue
    queue = names.get("max_queue_size") if is_dead else None
    return {
        name: value
        for name, value in arguments_of(names, config).items()
        if name != queue or name in required
    }
