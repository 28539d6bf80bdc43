"""Check a model on several devices: it must use all of them, and its batches must divide evenly among them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autofit import backends
from autofit.errors import UsageError
from autofit.records.machine import Placement
from autofit.records.units import counted
from autofit.trial.worker.keras_versions import distribution_of
from autofit.workload.inputs.fit_input import FitInput


def require_all_devices(model: Any, placement: Placement) -> None:
    """Check that a model trains on all devices of its placement and divides each batch among them.

    Raises:
        UsageError: the model trains on fewer or other devices, or is distributed in another way.
    """
    distribution, wanted = distribution_of(model), backends.current().distribution
    if distribution is None:
        if placement.count == 1:
            return
        problem = (
            f"devices is {placement.count}, but the model that build_model returned trains on one device. Build it "
            f"under a {wanted}, or set distribution: data_parallel to let autofit distribute it"
        )
    elif placement.count > 1 and distribution.name != wanted:
        problem = f"the model is distributed by {distribution.name}, which autofit does not support; use {wanted}"
    elif distribution.count != placement.count:
        problem = (
            f"the model is distributed by {distribution.name} over {counted(distribution.count, 'device')}, but this tune "
            f"uses {placement.count}. Set devices: {distribution.count}, or distribute the model over {placement.count}"
        )
    else:
        return
    raise UsageError(problem, key="devices")


def notices_of_model(model: Any, placement: Placement) -> Iterator[str]:
    """Yield notices about a distributed model."""
    distribution = distribution_of(model)
    if placement.count > 1:
        yield (f"{placement.count} devices share each batch: batch sizes are global, and multiples of {placement.count}")
    if distribution is not None and placement.count == 1:
        yield (
            f"the model is distributed by {distribution.name}, but this tune uses one device, and its result holds for "
            "one device. To tune for N devices, set devices: N; batch sizes are then global"
        )
    if placement.count > 1 and not placement.gpus:
        yield (
            f"the {placement.count} devices are parts of one CPU and share its cores and memory: their rate says nothing "
            f"about {placement.count} GPUs"
        )


def require_even_batches(data: FitInput, placement: Placement) -> None:
    """Check that full batches divide evenly among the devices.

    Raises:
        UsageError: they do not divide evenly.
    """
    if data.batch_samples % placement.count:
        raise UsageError(
            f"the data makes batches of {data.batch_samples} samples, which {placement.count} devices cannot share evenly. "
            f"batch_size is global: make it a multiple of {placement.count}",
            key="data",
        )


def notices_of_data(data: FitInput, held_out: FitInput | None, placement: Placement) -> Iterator[str]:
    """Yield notices about the last batch of an epoch if the devices may not share it evenly.

    Raises:
        UsageError: training on this backend fails on such a batch.
    """
    for key, part in (("data", data), ("validation", held_out)):
        if part is None or placement.count == 1:
            continue
        last = part.last_batch_samples()
        if last is None and part.kind == "tf.data":
            yield (
                f"autofit cannot tell whether {placement.count} devices can share the last batch of the {key} evenly. Use "
                "batch(…, drop_remainder=True)"
            )
        if last is not None and last % placement.count:
            uneven = f"the {key} ends in a batch of {last} samples, which {placement.count} devices cannot share evenly"
            remedy = f"Leave out the last {last % placement.count} samples, or the last batch"
            if backends.current().needs_even_batches:
                raise UsageError(f"{uneven}, so training fails on it. {remedy}", key=key)
            yield (
                f"{uneven}. If a device gets no sample, batch normalization yields NaN; if such a batch comes first, as in "
                f"a shuffled PyDataset, training fails. {remedy}"
            )
