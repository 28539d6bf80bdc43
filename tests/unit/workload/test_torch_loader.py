"""The knobs of a torch DataLoader, and how a config is written for its factory; nothing of torch is loaded."""

from dataclasses import replace

import pytest

from autofit.errors import UsageError
from autofit.records.states import FailureKind
from autofit.records.trial import FitConfig
from autofit.search.space import build_space
from autofit.trial.worker.data_workers import of_loader
from autofit.tuning.problem import Problem, notices
from autofit.workload.inputs import kinds, knobs
from tests.fakes import DESCRIPTION, arrays, make_request

ALL = {"batch_size": "batch_size", "workers": "num_workers", "prefetch_factor": "prefetch_factor"}


def factory(batch_size, num_workers=0, prefetch_factor=None, persistent_workers=False):
    """A factory's signature."""


def of_anything(**kwargs):
    """A factory that passes all on."""


class DataLoader:
    """Stands for torch's, by its name and module."""


DataLoader.__module__ = "torch.utils.data.dataloader"


def test_the_parameters_of_a_loader_are_knobs():
    taken = knobs.knobs_of(factory, {})
    assert taken == {**ALL, "use_multiprocessing": "persistent_workers"}
    assert "workers" not in knobs.knobs_of(factory, {"num_workers": 2})
    assert "prefetch_factor" not in knobs.knobs_of(of_anything, {})


@pytest.mark.parametrize(
    ("config", "arguments"),
    [
        (FitConfig(8, 2, None, True, 4), {"num_workers": 2, "prefetch_factor": 4, "persistent_workers": True}),
        (FitConfig(8, 0, None, True, 4), {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False}),
    ],
)  # fmt: skip  # one item a line would be longer, not clearer
def test_without_workers_nothing_of_theirs_is_given(config, arguments):
    assert knobs.arguments_of(knobs.knobs_of(factory, {}), config) == {"batch_size": 8, **arguments}


def test_a_worker_of_a_loader_is_a_process_with_batches_of_its_own():
    config = FitConfig(8, 3, None, True, 4)
    assert (config.has_queue, config.queue_batches, str(config)) == (True, 12, "batch 8, 3 processes, prefetch 4")
    assert (config.queue_in_words, FitConfig(8, 0, None, True, 4).queue_in_words) == ("12", None)
    (workers,), (queue,), (processes,) = (getattr(arrays(config), name) for name in ("workers", "queue", "processes"))
    assert (workers, queue, processes) == (3, 12, True)


def test_the_space_of_a_loader_has_settings_without_workers_once():
    space = build_space({"batch_size": [8]}, (*ALL, "use_multiprocessing"), cores=2, sample_count=None, has_processes=True)
    configs = list(space.configs())
    assert space.workers[:3] == (0, 1, 2)
    assert sum(not config.has_queue for config in configs) == 1
    assert {config.prefetch_factor for config in configs if config.workers == 2} == {2, 4, 8}


def test_settings_for_which_shared_memory_has_no_room_are_not_tried(tmp_path):
    space = build_space({"batch_size": [8]}, (*ALL, "use_multiprocessing"), cores=2, sample_count=None, has_processes=True)
    narrow = replace(space, most_samples_ahead=40)
    few = list(narrow.configs())
    assert max(config.queue_batches for config in few) == 4
    assert any(config.has_queue for config in few)
    problem = Problem(make_request(tmp_path), DESCRIPTION, narrow, few[0])
    (text,) = notices(problem)
    assert "/dev/shm has room for 40 samples" in text
    for roomy in (space, replace(space, most_samples_ahead=10**6)):
        assert not [*notices(replace(problem, space=roomy))]


def test_a_ready_made_loader_is_refused_with_the_factory_to_write():
    with pytest.raises(UsageError) as caught:
        kinds.refuse_unsupported(DataLoader())
    assert "def make_data(batch_size, num_workers, prefetch_factor, persistent_workers):" in str(caught.value)
    assert "return DataLoader(dataset, batch_size, num_workers=num_workers, " in str(caught.value)


@pytest.mark.parametrize(
    ("text", "kind", "reason"),
    [
        ("DataLoader worker (pid 7) is killed by signal: Killed. ", FailureKind.WORKER_DIED, "killed by signal: Killed"),
        ("DataLoader worker (pid(s) 7, 8) exited unexpectedly", FailureKind.WORKER_DIED, "exited unexpectedly"),
        ("DataLoader worker (pid 7) is killed by signal: Bus error. It is", FailureKind.WORKER_DIED, "signal: Bus error"),
    ],
)  # fmt: skip  # one item a line would be longer, not clearer
def test_a_worker_that_died_is_reported_with_what_torch_says_of_it(text, kind, reason):
    failure = of_loader(RuntimeError(text))
    assert failure.kind is kind
    assert reason in failure.reason
    assert of_loader(ValueError(text)) is None
    assert of_loader(RuntimeError("another")) is None
