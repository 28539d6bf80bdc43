"""`tf.data` as input: a factory passes its parameters to `batch`, `map` and `prefetch` of the
dataset that it returns.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

from autofit.errors import UsageError
from autofit.records.units import format_bytes
from autofit.workload.inputs.batch import leaves
from autofit.workload.inputs.fit_input import FitInput
from autofit.workload.inputs.knobs import has_base

# of a cache in memory: few enough to be made within a second, many enough to differ
_CACHED_ELEMENTS = 64
_CACHED_BYTES = 256 * 2**20  # the same for large elements
_REMEDY = (
    "Write it once before you tune, with dataset.save(path), and return tf.data.Dataset.load(path) "
    "instead"
)


class TfData(FitInput):
    """The user's `tf.data.Dataset` with one config applied; `fit` receives one full batch for each
    step.
    """

    kind = "tf.data"
    source = "the tf.data.Dataset"
    factory = (
        "batch_size, prefetch",
        "tf.data.Dataset.from_tensor_slices(...).batch(batch_size).prefetch(prefetch)",
    )
    tunes = ("batch_size", "max_queue_size")
    own_names: ClassVar = {
        "workers": "num_parallel_calls",
        "max_queue_size": "prefetch",
    }
    autotunes = True
    takes_turns = False  # threads of TensorFlow make its batches
    recognises = staticmethod(
        lambda data: has_base(data, "tensorflow.python.data", "DatasetV2")
    )

    def _open(self) -> None:
        import tensorflow as tf  # heavy: must stay out of the parent

        self.applied = replace(self._config, batch_size=None)
        self._keep_first(self._data)
        # all batches have one size if the dataset declares the first dimension of each tensor, as
        # with `drop_remainder`
        shapes = [
            spec.shape
            for spec in tf.nest.flatten(self._data.element_spec)
            if hasattr(spec, "shape")
        ]
        self.of_fixed_size = all(
            shape.rank is not None and (shape.rank == 0 or shape[0] is not None)
            for shape in shapes
        )
        self.counts_last_batch = self.of_fixed_size
        self._all_full = self.of_fixed_size or not self._counts_samples
        self._length = int(self._data.cardinality())  # below 0 if unknown or endless
        if self._length >= 0:  # the last batch may be partial
            self.epoch_batches = (
                self._length if self._all_full else max(1, self._length - 1)
            )

    def sample_count(self) -> int | None:
        return None if self._length < 0 else self._length * self.batch_samples

    def count_samples(self, batch_size: int) -> None:
        import tensorflow as tf  # heavy: must stay out of the parent

        # batches do not tell the samples
        self.batch_samples = batch_size
        self.epoch_batches = None
        self._length = -1
        with tf.device("CPU"):
            self.taken = tf.Variable(0, dtype=tf.int64)

    def fit_arguments(self, steps: int) -> dict[str, Any]:
        full = self._data
        if not self._all_full:
            import tensorflow as tf  # heavy: must stay out of the parent

            def is_full(*batch: Any) -> Any:
                samples = tf.shape(leaves(batch)[0], tf.int64)[0]
                if self.taken is None:
                    return tf.equal(samples, self.batch_samples)
                # batches of every size pass; the filter runs once for each that `fit` takes
                return self.taken.assign_add(samples) > 0

            is_uncounted = self.epoch_batches is None
            full = (
                full.filter(is_full) if is_uncounted else full.take(self.epoch_batches)
            )
        return {"x": full.repeat().take(steps)}

    def _epoch(self) -> Any:
        return self._data


# A trial ends in the middle of an epoch. If it filled a cache in a file, it would leave a lock
# there, on which the user's own `fit` then fails. So a trial refuses a cache file that is not
# complete, before anything is written. It also refuses `snapshot`, which writes anew for other
# knobs, and `save`.
#
# A cache in memory makes all epochs but the first faster. A trial ends before the cache is full, so
# its rate would be that of the filling epoch, which the user's training has once. So a trial caches
# the first elements only, fills this cache at once, and then repeats them. The memory of the
# elements that are left out is `reserved.bytes`, which counts as used.
#
# Both act where the user's code calls these methods: the dataset may be made, or even read,
# anywhere in that code.

# the memory of the elements that the caches of this process leave out; `unknown` if one has an
# unknown number of them
reserved = SimpleNamespace(bytes=0, unknown=False)
# whether the data is being opened: what `build_model` reads must have an end
_opening = SimpleNamespace(data=False, ends=False)


def with_controlled_caches(make: Callable[[], Any]) -> Any:
    """Call a function of the user that makes a dataset, with its caches under control."""
    _opening.data = True
    try:
        _control()
        made = make()
        # if only the function itself imports TensorFlow, it is called again: a dataset that is not
        # read has no effect
        return make() if _control() else made
    finally:
        _opening.data = False


def control_caches() -> None:
    """Put the caches of all datasets that this process makes under control, once TensorFlow is
    loaded.
    """
    _opening.data = True
    _opening.ends = True
    _control()


def cache_notices() -> Iterator[str]:
    """Yield what the user should know about the caches in memory."""
    if reserved.bytes:
        yield (
            "trials fill a part of the data's cache in memory; the other "
            f"{format_bytes(reserved.bytes)} count as used "
            "host memory, and rates are those of epochs that read from the full cache"
        )
    if reserved.unknown:
        yield (
            "the data has a cache in memory of an unknown number of elements, whose memory is not "
            "in the figures. To count "
            "it, name the number before .cache(), with tf.data.experimental.assert_cardinality"
        )


def _control() -> bool:
    """Replace the methods of `tf.data.Dataset`; return whether that was done now."""
    tf: Any = sys.modules.get("tensorflow")
    dataset = getattr(getattr(tf, "data", None), "Dataset", None)
    if dataset is None or getattr(dataset.cache, "__module__", None) == __name__:
        return False
    original = dataset.cache

    def cache(self: Any, filename: Any = "", name: str | None = None) -> Any:
        path = tf.get_static_value(tf.convert_to_tensor(filename))
        if path != b"":
            _require_complete(
                tf, "a file" if path is None else path.decode(errors="replace")
            )
        elif _opening.data and tf.executing_eagerly():
            return _in_part(tf, self, lambda elements: original(elements, name=name))
        return original(self, filename, name=name)

    def refused(self: Any, path: Any, *_: Any, **__: Any) -> Any:
        raise UsageError(
            f"the data writes a snapshot or a dataset to {path}, which trials must not do. "
            f"{_REMEDY}"
        )

    dataset.cache = cache
    dataset.snapshot = refused
    dataset.save = refused
    return True


def _require_complete(tf: Any, path: str) -> None:
    # tf.data only reads a cache that has an index and no locks
    if tf.io.gfile.glob(f"{path}_*.lockfile") or not tf.io.gfile.exists(
        f"{path}.index"
    ):
        raise UsageError(
            f"the data caches to {path}, and that cache is not complete. Delete the files {path}_* "
            "if there are any, fill "
            "it once, for example with `for _ in data(): pass`, and tune again. A trial ends "
            "before the cache is full and "
            "would leave a lock there, on which your own fit would fail"
        )


def _in_part(tf: Any, elements: Any, cached: Callable[[Any], Any]) -> Any:
    """Return a dataset that reads the first elements from a cache in memory, as often as the
    elements have a number.
    """
    count = int(elements.cardinality())
    first = tf.nest.flatten(next(iter(elements.take(1)), ()), expand_composites=True)
    size = sum(
        len(b"".join(p.numpy().ravel())) if p.dtype == tf.string else p.numpy().nbytes
        for p in first
    )
    cached_count = max(1, min(_CACHED_ELEMENTS, _CACHED_BYTES // max(1, size)))
    is_short = 0 <= count <= cached_count or count == tf.data.INFINITE_CARDINALITY
    # the user's own epoch never ends with an endless cache; and a script may read all of it
    if is_short or (count < 0 and _opening.ends):
        reserved.unknown = reserved.unknown or not is_short
        return cached(elements)
    part = cached(elements.take(cached_count))
    for _ in part:
        pass
    if count < 0:
        reserved.unknown = True
        return part.repeat()
    reserved.bytes += (count - cached_count) * size
    return part.repeat().take(count)
