"""Which streams the workers of a DataLoader share; a stand-in takes the place of torch's loader."""

import functools
from types import SimpleNamespace

import pytest

from autofit.workload.inputs.torch_streams import is_split


def get_worker_info():
    return None


def share(records):
    return [records, get_worker_info()]


class Whole:
    def __iter__(self):
        return iter(range(4))


class Asks:
    def __iter__(self):
        yield from (get_worker_info() for _ in range(2))


class AsksInAFunction:
    def __iter__(self):
        yield from share(range(4))


class AsksInAMethod(Whole):
    def __iter__(self):
        return self._share()

    def _share(self):
        import torch

        return torch.utils.data.get_worker_info()


class Wrapped:
    def __init__(self, *sources):
        self.sources = list(sources)

    def __iter__(self):
        for source in self.sources:
            yield from source


class Shards(Whole):
    def apply_sharding(self, instances, instance):
        pass


HuggingFace = type(
    "IterableDataset", (Whole,), {"__module__": "datasets.iterable_dataset"}
)


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (Whole(), False),
        (Wrapped(Whole(), [1, 2]), False),
        (Asks(), True),
        (AsksInAFunction(), True),
        (AsksInAMethod(), True),
        (Wrapped(Whole(), Asks()), True),
        (Wrapped(functools.partial(share, [1])), True),
        (Shards(), True),
        (Wrapped(Shards()), True),
        (HuggingFace(), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_stream_is_split_if_its_code_asks_which_worker_it_runs_in(dataset, expected):
    assert is_split(SimpleNamespace(worker_init_fn=None, dataset=dataset)) is expected


def test_a_function_for_each_worker_is_taken_to_split_the_stream():
    assert is_split(SimpleNamespace(worker_init_fn=print, dataset=Whole()))
