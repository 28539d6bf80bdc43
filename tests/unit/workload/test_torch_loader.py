"""The knobs of a torch DataLoader; nothing of torch is loaded."""

from dataclasses import replace

from autofit.records.knobs import FitConfig
from autofit.records.states import FailureKind
from autofit.search.space import build_space
from autofit.trial.worker.data_workers import of_loader
from autofit.tuning.problem import Problem, notices
from tests.fakes import DESCRIPTION, arrays, make_request

KNOBS = ("batch_size", "workers", "prefetch_factor", "use_multiprocessing")
SPACE = build_space(
    {"batch_size": [8]}, KNOBS, cores=2, sample_count=None, has_processes=True
)


def test_a_worker_of_a_loader_is_a_process_with_batches_of_its_own():
    config = FitConfig(8, 3, None, True, 4)
    assert (config.has_queue, config.queue_batches, str(config)) == (
        True,
        12,
        "batch 8, 3 processes, prefetch 4",
    )
    assert (config.queue_in_words, FitConfig(8, 0, None, True, 4).queue_in_words) == (
        "12",
        None,
    )
    (workers,), (queue,), (processes,) = (
        getattr(arrays(config), name) for name in ("workers", "queue", "processes")
    )
    assert (workers, queue, processes) == (3, 12, True)


def test_the_space_of_a_loader_has_settings_without_workers_once():
    configs = list(SPACE.configs())
    assert SPACE.workers[:3] == (0, 1, 2)
    assert sum(not config.has_queue for config in configs) == 1
    assert {config.prefetch_factor for config in configs if config.workers == 2} == {
        2,
        4,
        8,
    }


def test_settings_for_which_shared_memory_has_no_room_are_not_tried(tmp_path):
    narrow = replace(SPACE, most_samples_ahead=40)
    few = list(narrow.configs())
    assert max(config.queue_batches for config in few) == 4
    assert any(config.has_queue for config in few)
    problem = Problem(make_request(tmp_path), DESCRIPTION, narrow, few[0])
    (text,) = notices(problem)
    assert "/dev/shm has room for 40 samples" in text
    for roomy in (SPACE, replace(SPACE, most_samples_ahead=10**6)):
        assert not [*notices(replace(problem, space=roomy))]


def test_a_worker_that_died_is_reported_with_what_torch_says_of_it():
    for text in (
        "DataLoader worker (pid 7) is killed by signal: Killed.",
        "DataLoader worker (pid(s) 7) exited",
    ):
        assert of_loader(RuntimeError(text)).kind is FailureKind.WORKER_DIED
        assert of_loader(ValueError(text)) is None
    assert of_loader(RuntimeError("another")) is None
