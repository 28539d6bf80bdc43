"""Detect workloads that take batches of one size only, whose batch size cannot be tuned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras

from autofit.trial.worker.build import open_training
from autofit.trial.worker.job import TrialContext
from autofit.workload.inputs.batch import leaves, length_of
from autofit.workload.inputs.fit_input import FitInput
from autofit.workload.workload import Workload


@dataclass(frozen=True)
class OneSize:
    """The only batch size of a workload, with the reason and the remedy."""

    samples: int
    reason: str


def of_data(context: TrialContext, loaded: Workload, data: FitInput) -> OneSize | None:
    """The size of batches that ignore `batch_size`; None if they follow it.

    If the batches do not have the requested size, open the data again for batches of half the size: the data set may be
    smaller than one batch.
    """
    asked = context.config.batch_size
    lengths = [length_of(leaf) for leaf in leaves(data.batch())]
    if asked is None or asked in lengths or data.kind == "arrays":
        return None
    fewer = max(1, min(asked, *lengths) // 2)
    try:
        again = [length_of(leaf) for leaf in leaves(open_training(context.sized(fewer), loaded).batch())]
    except Exception:  # data that cannot make such small batches follows the knob
        return None
    if again != lengths or fewer in lengths:
        return None
    return OneSize(
        data.batch_samples,
        f"the data makes batches of {data.batch_samples} whatever batch_size it is given. "
        "Let its factory use the batch_size that it takes, or fix batch_size in data_kwargs",
    )


def of_model(model: Any) -> OneSize | None:
    """The batch size that a model's inputs fix; None if it is open."""
    inputs = getattr(model, "inputs", None) if model.built else None
    sizes = {tensor.shape[0] for tensor in keras.tree.flatten(inputs)} if inputs else {None}
    size = next(iter(sizes))
    if len(sizes) > 1 or size is None:
        return None
    return OneSize(
        int(size),
        f"the model takes batches of {size} only. Leave batch_size out of its Input, or fix batch_size in data_kwargs",
    )


def of_step(samples: int) -> OneSize:
    """The only batch size for which the train step can be traced."""
    return OneSize(
        samples,
        f"the train step takes batches of {samples} only. "
        "Take the batch size from the data in train_step (ops.shape(x)[0]), or fix batch_size in data_kwargs",
    )
