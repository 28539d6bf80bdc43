"""Data given as an object instead of a factory: which objects are supported, and how a config is applied to them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from autofit.errors import UnsupportedInputError

_FACTORY = """Pass a function that builds it instead; the knobs among its parameters are tuned:

    def make_data(batch_size{more}):
        return {returned}
"""


def has_base(value: Any, package: str, name: str) -> bool:
    """Whether a value's class has a base of that name. Found by name, so that no library is imported."""
    return any(base.__name__ == name and base.__module__.startswith(package) for base in type(value).__mro__)


def is_pydataset(data: Any) -> bool:
    """Whether a value is a `keras.utils.PyDataset`."""
    return has_base(data, "keras", "PyDataset")


def is_tfdata(data: Any) -> bool:
    """Whether a value is a `tf.data.Dataset`."""
    return has_base(data, "tensorflow.python.data", "DatasetV2")


def is_torch_loader(data: Any) -> bool:
    """Whether a value is a `torch.utils.data.DataLoader`."""
    return has_base(data, "torch.utils.data", "DataLoader")


def refuse_unsupported(data: Any) -> None:
    """Refuse data that every trial would refuse, before any trial runs, and say how to write a factory for it."""
    if callable(data):
        return
    if is_tfdata(data):
        returned = "tf.data.Dataset.from_tensor_slices(...).batch(batch_size).prefetch(prefetch)"
        how = _FACTORY.format(more=", prefetch", returned=returned)
        raise UnsupportedInputError(f"the batch size of a ready-made tf.data.Dataset cannot be set. {how}")
    if is_torch_loader(data):
        knobs = ("num_workers", "prefetch_factor", "persistent_workers")
        same = ", ".join(f"{name}={name}" for name in ("batch_size", *knobs))
        how = _FACTORY.format(more=", " + ", ".join(knobs), returned=f"DataLoader(dataset, {same})")
        raise UnsupportedInputError(f"the batch size of a ready-made torch DataLoader cannot be set. {how}")
    if isinstance(data, Iterator):
        how = _FACTORY.format(more="", returned="my_generator(batch_size)")
        raise UnsupportedInputError(f"a ready-made generator can be used only once. {how}")
    if is_pydataset(data) and not can_set(data, "batch_size"):
        name = type(data).__name__
        how = _FACTORY.format(more=", **knobs", returned=f"{name}(..., batch_size=batch_size, **knobs)")
        raise UnsupportedInputError(f"this {name} has no attribute batch_size that can be set. {how}")


def copy_with(data: Any, **knobs: Any) -> Any:
    """Copy a ready-made PyDataset and set the knobs as attributes."""
    made = copy.copy(data)
    for name, value in knobs.items():
        setattr(made, name, value)
    return made


def can_set(data: Any, name: str) -> bool:
    """Whether an object has an attribute of that name that can be set; tried on a copy."""
    if not hasattr(data, name):
        return False
    try:
        setattr(copy.copy(data), name, getattr(data, name))
    except AttributeError:
        return False
    return True
