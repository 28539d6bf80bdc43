"""Batches that differ in shape: each trial trains on the longest and the shortest of them."""

import numpy as np
import pytest

from autofit.records.knobs import FitConfig
from autofit.records.states import Outcome
from autofit.trial.worker import batch_shapes
from autofit.workload.inputs.kinds import open_input
from tests import workloads as w

tf = pytest.importorskip("tensorflow")


def batch(length, samples=4):
    return {"tokens": np.ones((samples, length), "int32")}, np.ones(
        (samples, 1), "float32"
    )


def test_the_longest_and_the_shortest_of_all_batches_are_found_saved_and_resized(
    tmp_path,
):
    assert batch_shapes.load(tmp_path) is None
    batch_shapes.scan(
        iter([batch(10), batch(70), batch(5, samples=2), *[batch(20)] * 30])
    ).save(tmp_path)
    shapes = batch_shapes.load(tmp_path)
    assert [part[0]["tokens"].shape for part in (shapes.longest, shapes.shortest)] == [
        (4, 70),
        (2, 5),
    ]
    longest = shapes.resized(9)[0]
    assert (longest[0]["tokens"].shape, longest[1].shape) == ((9, 70), (9, 1))
    assert batch_shapes.sample_bytes(longest) == 70 * 4 + 4


def test_the_scan_of_batches_of_one_shape_ends_early(monkeypatch):
    monkeypatch.setattr(batch_shapes, "_FEWEST_SECONDS", 0.0)
    drawn = iter([batch(10)] * 100)
    assert batch_shapes.scan(drawn) is None
    assert len([*drawn]) >= 80
    assert batch_shapes.scan(iter([batch(3), batch(3, samples=2)])) is None


def test_full_batches_of_several_sizes_are_not_taken_for_partial_ones():
    drawn = [batch(70), *[batch(60, samples=8), batch(70)] * 3, batch(5, samples=1)]
    shapes = batch_shapes.scan(iter(drawn), asked=4)
    assert [len(part[1]) for part in (shapes.longest, *shapes.resized(8))] == [8, 16, 2]
    assert (
        batch_shapes.scan(iter([batch(10)] * 9 + [batch(10, samples=1)]), asked=4)
        is None
    )


def buckets(batch_size=8):
    """Texts, of four of which one is short; the long ones are in larger batches."""
    texts = [
        (np.ones(16 if number % 4 else 8, "int32"), np.ones(1, "float32"))
        for number in range(1000)
    ]
    signature = tf.TensorSpec((None,), "int32"), tf.TensorSpec((1,), "float32")
    data = tf.data.Dataset.from_generator(lambda: texts, output_signature=signature)
    return data.bucket_by_sequence_length(
        lambda x, y: tf.shape(x)[0], [12], [batch_size, 4 * batch_size]
    )


def of_buckets(batch_size=8):
    yield from buckets(batch_size).as_numpy_iterator()


@pytest.mark.parametrize("data", [buckets, of_buckets])
def test_batches_of_several_sizes_train_and_their_samples_count(turn, play, data):
    launcher = turn(w.build_for_texts, data)
    assert "several sizes" in play(launcher, FitConfig(8), role="describe").shapes
    assert play(launcher, FitConfig(16)).outcome is Outcome.OK
    opened = open_input(data, {}, FitConfig(8), print)
    opened.count_samples(8)
    sizes = [len(y) for _, y in opened.fit_arguments(30)["x"]]
    assert {8, 32} <= {*sizes}
    assert (int(opened.taken), len(sizes)) == (sum(sizes), 30)
