"""torch: what is tuned about DataLoaders, and tensors that count.

Also what loaders have ahead, and how a trial with one ends.
"""

import pytest

from autofit.errors import UsageError
from autofit.records.knobs import FitConfig
from autofit.records.states import Outcome
from tests import workloads as w
from tests.backends import loaders
from tests.commands import python

BACKEND = "torch"
LIVE_BYTES = """
import torch
from autofit.backends.torch.step_footprint import LiveBytes
with LiveBytes() as count:
    first = torch.ones(1000)
    second = first + 1
    view = second[10:]
    del first
    third = view * 2
    del second, view, third
print(count.after_each)
"""


def test_a_loader_whose_batches_do_not_follow_the_knob_is_tuned_without_it(
    launched, play
):
    described = play(launched(data=loaders.of_one_size), FitConfig(16), role="describe")
    assert described.fixed_batch_size == 8
    assert "batches of 8 " in described.untuned["batch_size"]


def test_a_loader_has_ahead_what_its_workers_may_prefetch(launched, play):
    measurement = play(launched(data=loaders.loader), FitConfig(8, 2, None, True, 4))
    assert (
        0 < measurement.queued_batches <= 2 * 4
    )  # fewer if a busy machine keeps the workers from making others


def test_a_stream_is_tried(launched, play):
    measurement = play(launched(data=loaders.stream), FitConfig(8, 2, None, True, 2))
    assert measurement.outcome is Outcome.OK, measurement.evidence
    assert measurement.samples_per_second > 0


def test_a_dead_worker_of_a_loader_is_told_apart_from_the_training(launched, play):
    config = FitConfig(8, workers=2, use_multiprocessing=True, prefetch_factor=2)
    measurement = play(
        launched(data=loaders.loader, data_kwargs={"case": w.KILLED}), config
    )
    assert measurement.outcome is Outcome.CRASHED, measurement.evidence
    assert (
        "a worker process " in measurement.evidence.reason
    )  # … is killed, or died before it had handed over a batch


def test_a_loader_that_did_not_take_over_its_knobs_is_refused(launched, play):
    with pytest.raises(UsageError, match=r"num_workers=2\b.*num_workers=0"):
        play(launched(data=loaders.forgets_its_workers), FitConfig(8, 2, None, True, 2))


def test_only_where_a_step_has_the_training_thread_to_itself_do_step_and_input_take_turns(
    backend, launched, play
):
    assert play(launched(), FitConfig(w.OK), role="describe").takes_turns == (
        backend == "torch"
    )


def test_the_tensors_of_torch_count_while_they_live(backend):
    # in a process without TensorFlow: torch.compile's Triton crashes when it is loaded after it
    assert (
        python("-c", LIVE_BYTES, KERAS_BACKEND="torch").strip()
        == "[4000, 8000, 8000, 7960]"
    )
