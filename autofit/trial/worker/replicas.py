"""A model on several devices: whether it uses all of them, and whether its data can be shared evenly by them."""

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
    """Check that a model trains on the devices of its placement, a share of each batch on each.

    Raises:
        UsageError: it trains on fewer or on others, or is divided in another way.
    """
    distribution, wanted = distribution_of(model), backends.current().distribution
    count = 1 if distribution is None else distribution.count
    if distribution is None and placement.count > 1:
        raise UsageError(
            f"{placement.count} devices are given, but the model that build_model returned trains on one: build it under a "
            f"{wanted}, or write distribution: data_parallel, with which autofit does",
            key="devices",
        )
    if distribution is not None and placement.count > 1 and distribution.name != wanted:
        raise UsageError(
            f"the model is distributed by {distribution.name}, which is not supported with several devices; {wanted} is",
            key="devices",
        )
    if distribution is not None and count != placement.count:
        raise UsageError(
            f"the model is distributed by {distribution.name} over {counted(count, 'device')}, and this tune is of "
            f"{placement.count}: write devices: {count}, or let it take as many",
            key="devices",
        )


def notices_of_model(model: Any, placement: Placement) -> Iterator[str]:
    """What the user should know of a model that is distributed."""
    distribution = distribution_of(model)
    if placement.count > 1:
        yield (
            f"each batch is shared by {placement.count} devices: batch sizes are global, of all together, and multiples of "
            f"{placement.count}"
        )
    if distribution is not None and placement.count == 1:
        yield (
            f"the model is distributed by {distribution.name}, and this tune is of one device: what is found is for one. "
            "For a training on N devices write devices: N; batch sizes are then of all together"
        )
    if placement.count > 1 and not placement.gpus:
        yield (
            f"the {placement.count} devices are parts of one CPU, which share its cores and its memory: their rate says "
            "nothing of so many GPUs"
        )


def require_even_batches(data: FitInput, placement: Placement) -> None:
    """Check that full batches can be shared evenly.

    Raises:
        UsageError: they cannot, whatever batch size is tried.
    """
    if data.batch_samples % placement.count:
        raise UsageError(
            f"the data makes batches of {data.batch_samples}, which {placement.count} devices cannot share evenly: "
            f"batch_size is global, of all devices together; make it a multiple of {placement.count}",
            key="data",
        )


def notices_of_data(data: FitInput, held_out: FitInput | None, placement: Placement) -> Iterator[str]:
    """What the user should know of an epoch's last batch, which several devices may not be able to share evenly.

    Raises:
        UsageError: such a batch ends a training on this backend.
    """
    for key, part in (("data", data), ("validation", held_out)):
        if part is None or placement.count == 1:
            continue
        last = part.last_batch_samples()
        if last is None and part.kind == "tf.data":
            yield (
                f"whether {placement.count} devices can share the last batch of the {key} evenly is not known: use "
                "batch(…, drop_remainder=True)"
            )
        if last is not None and last % placement.count:
            uneven = f"the {key} ends in a batch of {last} samples, which {placement.count} devices cannot share evenly: "
            remedy = f"leave out the last {last % placement.count}, or the last batch"
            if backends.current().needs_even_batches:
                raise UsageError(f"{uneven}the training would end there with an error; {remedy}", key=key)
            yield (
                f"{uneven}where a device gets none, batch normalization turns to NaN, and where such a batch comes first, "
                f"as in a PyDataset that is shuffled, the training fails; {remedy}"
            )
