"""The kinds of input, and how the user's data is opened as one of them.

A new kind is a new file with a subclass of `FitInput`, and its name in `KINDS`. The classes load Keras only in methods
that a trial's process calls.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from autofit.errors import UnsupportedInputError, UsageError
from autofit.records.trial import AUTOTUNE, FitConfig
from autofit.workload.inputs import prebuilt
from autofit.workload.inputs.arrays import Arrays
from autofit.workload.inputs.fit_input import FitInput
from autofit.workload.inputs.generator import Generator
from autofit.workload.inputs.knobs import AUTOTUNED, NO_AUTOTUNE, arguments_of, knobs_of
from autofit.workload.inputs.pydataset import PyDatasetInput
from autofit.workload.inputs.sequence import SequenceInput
from autofit.workload.inputs.tfdata import TfData
from autofit.workload.inputs.torch_loader import TorchLoader

KINDS: dict[str, type[FitInput]] = {
    kind.kind: kind for kind in (Arrays, PyDatasetInput, SequenceInput, TfData, TorchLoader, Generator)
}


def open_input(
    data: Any, kwargs: Mapping[str, Any], config: FitConfig, report_error: Callable[[BaseException], None]
) -> FitInput:
    """Build the user's data under a config.

    Args:
        data: arrays, a PyDataset, or a factory.
        kwargs: what the user passes to the factory beside the knobs.
        config: the knobs; those that the data does not take are ignored.
        report_error: called with what the user's code raises while batches are made (in a thread or another process).

    Raises:
        UnsupportedInputError: the data is of no known kind.
        UsageError: the config leaves a knob of other data than `tf.data` to AUTOTUNE.
        Exception: whatever the user's factory raises.
    """
    names = knobs_of(data, kwargs)
    given = arguments_of(names, config)
    reopen = None
    if callable(data):
        reopen = functools.partial(data, **kwargs, **given)
    elif names:
        reopen = functools.partial(prebuilt.copy_with, data, **given)
    made = data if reopen is None else reopen()
    applied = {knob: given[name] for knob, name in names.items() if name in given}
    for kind in KINDS.values():
        if kind.recognises(made):
            at_fit = {knob: value for knob, value in config.values().items() if knob in kind.fit_knobs}
            under = FitConfig.of({**applied, **at_fit})
            if not kind.autotunes:
                _refuse_autotune(kind.kind, under)
            return kind(made, under, report_error, reopen)
    raise UnsupportedInputError(
        f"the data is a {type(made).__module__}.{type(made).__qualname__}; autofit takes arrays x, (x, y) or "
        "(x, y, sample_weight), and factories that return such arrays, a keras.utils.PyDataset, a "
        "tf_keras.utils.Sequence, a tf.data.Dataset, a torch DataLoader or a generator. Wrap others in one"
    )


def _refuse_autotune(kind: str, config: FitConfig) -> None:
    for knob in AUTOTUNED:
        if getattr(config, knob) == AUTOTUNE:
            raise UsageError(f"{knob} cannot be -1 for {kind} data: {NO_AUTOTUNE}")
