"""Caches of `tf.data` in a trial: one in a file is only read, one in memory is filled in part.

A trial ends in the middle of an epoch. If it filled a cache in a file, it would leave a lock there, on which the user's own
`fit` then fails. So a trial refuses a cache file that is not complete, before anything is written. It also refuses
`snapshot`, which writes anew for other knobs, and `save`.

A cache in memory makes all epochs but the first faster. A trial ends before the cache is full, so its rate would be that of
the filling epoch, which the user's training has once. So a trial caches the first elements only, fills this cache at once,
and then repeats them. The memory of the elements that are left out is `reserved_bytes`, which counts as used.

Both act where the user's code calls these methods: the dataset may be made, or even read, anywhere in that code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autofit.errors import UsageError
from autofit.records.units import format_bytes

_KEPT_ELEMENTS = 64  # of a cache in memory: few enough to be made within a second, many enough to differ
_KEPT_BYTES = 256 * 2**20  # the same for large elements
_REMEDY = "Write it once before you tune, with dataset.save(path), and return tf.data.Dataset.load(path) instead"


@dataclass
class _Reserved:
    """The memory of the elements that caches leave out, in bytes; `unknown` if a cache has an unknown number of them."""

    bytes: int = 0
    unknown: bool = False


reserved = _Reserved()  # what the caches of this process leave out


def opened(make: Callable[[], Any]) -> Any:
    """Call a function of the user that makes a dataset, with its caches under control."""
    _control()
    made = make()
    # if only the function itself imports TensorFlow, it is called again: a dataset that is not read has no effect
    return make() if _control() else made


def notices() -> list[str]:
    """Return what the user should know about the caches in memory."""
    texts = []
    if reserved.bytes:
        texts.append(
            f"trials fill a part of the data's cache in memory; the other {format_bytes(reserved.bytes)} count as used "
            "host memory, and rates are those of epochs that read from the full cache"
        )
    if reserved.unknown:
        texts.append(
            "the data has a cache in memory of an unknown number of elements, whose memory is not in the figures. To count "
            "it, name the number before .cache(), with tf.data.experimental.assert_cardinality"
        )
    return texts


def _control() -> bool:
    """Replace the methods of `tf.data.Dataset`; return whether that was done now."""
    dataset = getattr(getattr(sys.modules.get("tensorflow"), "data", None), "Dataset", None)
    if dataset is None or getattr(dataset.cache, "__module__", None) == __name__:
        return False
    original = dataset.cache

    def cache(self: Any, filename: Any = "", name: str | None = None) -> Any:
        import tensorflow as tf  # heavy: must stay out of the parent

        path = tf.get_static_value(tf.convert_to_tensor(filename))
        if path != b"":
            _require_complete("a file" if path is None else path.decode(errors="replace"))
        elif tf.executing_eagerly():
            return _in_part(self, lambda elements: original(elements, name=name))
        return original(self, filename, name=name)

    def snapshot(self: Any, path: Any, *_: Any, **__: Any) -> Any:
        raise UsageError(f"the data writes a snapshot to {path}, which trials must not do. {_REMEDY}")

    def save(self: Any, path: Any, *_: Any, **__: Any) -> Any:
        raise UsageError(f"the data saves a dataset to {path} when it is opened, which trials must not do. {_REMEDY}")

    dataset.cache, dataset.snapshot, dataset.save = cache, snapshot, save
    return True


def _require_complete(path: str) -> None:
    """Raise UsageError unless `tf.data` has completed a cache file, which it then only reads."""
    import tensorflow as tf  # heavy: must stay out of the parent

    locks = tf.io.gfile.glob(f"{path}_*.lockfile")
    if tf.io.gfile.exists(f"{path}.index") and not locks:
        return
    todo = f"is not complete (there is {locks[0]}): delete the files {path}_* and fill" if locks else "is empty: fill"
    raise UsageError(
        f"the data caches to {path}, and that cache {todo} it once, for example with `for _ in data(): pass`, and tune "
        "again. A trial ends before the cache is full and would leave a lock there, on which your own fit would fail"
    )


def _in_part(elements: Any, cached: Callable[[Any], Any]) -> Any:
    """Return a dataset that reads the first elements from a cache in memory, as often as the elements have a number."""
    import tensorflow as tf  # heavy: must stay out of the parent

    count = int(elements.cardinality())
    size = _element_bytes(elements)
    kept = max(1, min(_KEPT_ELEMENTS, _KEPT_BYTES // max(1, size)))
    if 0 <= count <= kept or count == tf.data.INFINITE_CARDINALITY:
        return cached(elements)  # the user's own epoch never ends with an endless cache
    part = cached(elements.take(kept))
    for _ in part:
        pass
    if count < 0:
        reserved.unknown = True
        return part.repeat()
    reserved.bytes += (count - kept) * size
    return part.repeat().take(count)


def _element_bytes(elements: Any) -> int:
    import tensorflow as tf  # heavy: must stay out of the parent

    first = tf.nest.flatten(next(iter(elements.take(1)), ()), expand_composites=True)
    return sum(len(b"".join(part.numpy().ravel())) if part.dtype == tf.string else part.numpy().nbytes for part in first)
