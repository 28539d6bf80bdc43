"""Batches over and over, for the step alone: a pipeline at almost no cost (loads Keras).

Keras turns every input into a `tf.data.Dataset` on TensorFlow, and takes one as it is: batches keep their structure there.
On other backends it takes the batches of a PyDataset one by one, an x alone as a tuple of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from autofit import backends


def repeated(batches: Sequence[Any], length: int, opening: Sequence[Any] = (), *, of_fixed_size: bool = False) -> Any:
    """Return data of `length` batches that repeats `batches`, after those of `opening`, as `fit` takes it.

    Args:
        batches: nests in the structure that Keras hands to `train_step`.
        length: batches in all.
        opening: batches that come first, once.
        of_fixed_size: whether all batches have the same number of samples, which a step that is traced may rely on.
    """
    if backends.current().uses_tfdata:
        from autofit.trial.worker.repeated_tfdata import repeated_tfdata  # loads TensorFlow

        return repeated_tfdata(batches, length, opening, of_fixed_size=of_fixed_size)
    return Repeated(batches, length, opening)


class Repeated(keras.utils.PyDataset):  # type: ignore[misc]  # Keras ships no types
    """The batches of `opening`, then `batches` in turn, made in the training thread."""

    def __init__(self, batches: Sequence[Any], length: int, opening: Sequence[Any] = ()) -> None:
        super().__init__(workers=1)
        self._batches, self._length, self._opening = batches, length, opening

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        after = index - len(self._opening)
        batch = self._opening[index] if after < 0 else self._batches[after % len(self._batches)]
        return batch if isinstance(batch, tuple | dict) else (batch,)
