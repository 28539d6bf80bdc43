import numpy as np

from autofit.trial.worker import batch_shapes


def batch(length, samples=4):
    return {"tokens": np.ones((samples, length), "int32")}, np.ones((samples, 1), "float32")


def test_the_longest_and_the_shortest_of_all_batches_are_returned():
    shapes = batch_shapes.scan(iter([batch(10), batch(70), batch(5, samples=2), *[batch(20)] * 30]))
    assert [part[0]["tokens"].shape for part in (shapes.longest, shapes.shortest)] == [(4, 70), (2, 5)]
    assert " 33 " in str(shapes)


def test_the_scan_of_batches_of_one_shape_ends_early(monkeypatch):
    monkeypatch.setattr(batch_shapes, "_FEWEST_SECONDS", 0.0)
    count = 0

    def endless():
        nonlocal count
        while True:
            count += 1
            yield batch(10)

    assert batch_shapes.scan(endless()) is None
    assert count <= 20
    assert batch_shapes.scan(iter([])) is None
    assert batch_shapes.scan(iter([batch(3), batch(3, samples=2)])) is None


def test_saved_batches_are_loaded_and_resized(tmp_path):
    assert batch_shapes.load(tmp_path) is None
    batch_shapes.scan(iter([batch(10), batch(70)])).save(tmp_path)
    tokens, target = batch_shapes.load(tmp_path).resized(9)[0]
    assert (tokens["tokens"].shape, target.shape) == ((9, 70), (9, 1))
    assert batch_shapes.sample_bytes((tokens, target)) == 70 * 4 + 4
