"""Three input pipelines: the quickstart's, one that keeps Python's lock, one that releases it.

| job | input | step | its batch size |
| --- | --- | --- | --- |
| patches | rows of arrays on disk, `examples/patches.py` | a small network | 32 |
| gil | text hashed in pure Python, of `mirrored_jobs.py` | two dense layers | 32 |
| inflate | records that zlib unpacks, of `mirrored_jobs.py` | two dense layers | 32 |
"""

import keras
from mirrored_jobs import BUCKETS, dense_model, hashed, inflated, patches

patches_model = patches.build_model
Patches = patches.Patches


class Pipeline(keras.utils.PyDataset):
    """An epoch of a pipeline that has no end; `whole` makes that for a batch size."""

    def __init__(self, whole, samples, batch_size, **kwargs):
        super().__init__(**kwargs)
        self.batches = whole(batch_size)
        self.length = samples // batch_size

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.batches[index]


def gil_model():
    return dense_model(BUCKETS)


def gil(batch_size=32, workers=1, max_queue_size=10, use_multiprocessing=False):
    knobs = {"workers": workers, "use_multiprocessing": use_multiprocessing}
    return Pipeline(hashed, 20_000, batch_size, max_queue_size=max_queue_size, **knobs)


inflate_model = gil_model


def inflate(batch_size=32, workers=1, max_queue_size=10, use_multiprocessing=False):
    knobs = {"workers": workers, "use_multiprocessing": use_multiprocessing}
    return Pipeline(
        inflated, 40_000, batch_size, max_queue_size=max_queue_size, **knobs
    )
