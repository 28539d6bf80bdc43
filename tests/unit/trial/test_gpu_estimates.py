"""The largest batch on a GPU that is not there, on steps whose memory is known."""

import pytest

from autofit import backends
from autofit.backends.absent_gpu import find
from autofit.errors import UsageError
from autofit.records.description import Footprint
from autofit.trial.worker import gpu_estimates

GIB = 2**30
(A100,) = find(["A100-40GB"])


class Step:
    """A step with a memory of its own for each batch size, without an error."""

    def __init__(self, bytes_at, error=0.0):
        self.bytes_at, self.error, self.compiled = bytes_at, error, []

    def on_gpu(self, gpu, size):
        self.compiled.append(size)
        return Footprint(size, {"temporaries": int(self.bytes_at(size))}, "XLA", self.error)


def estimate(step, sizes=(), multiple_of=1, most=None):
    (found,) = gpu_estimates.estimate(step, [A100], sizes, multiple_of, most)
    return found


@pytest.fixture(autouse=True)
def whole_gpu(monkeypatch):
    monkeypatch.setattr(type(backends.current()), "pool_bytes", lambda self, device: 32 * GIB)


@pytest.mark.parametrize(("level", "sample", "error"), [(1, 0.05, 0.0), (0.2, 0.001, 0.1), (20, 0.5, 0.1), (3, 1.5, 0.0)])
def test_the_largest_batch_of_an_affine_step_is_found_in_few_compilations(level, sample, error):
    step = Step(lambda size: (level + sample * size) * GIB, error)
    found = estimate(step)
    true = (32 / (1 + error) - level) / sample
    assert 0.9 * true <= found.largest_batch_size <= true
    assert len(step.compiled) <= 5
    assert len(set(step.compiled)) == len(step.compiled)
    assert (found.recomputes_from, found.problem, found.usable_bytes) == (None, "", 32 * GIB)


def test_where_xla_recomputes_is_told_and_the_search_ends():
    step = Step(lambda size: min((1 + 0.08 * size) * GIB, 25 * GIB + size))
    found = estimate(step)
    assert 270 <= found.recomputes_from <= 300  # 1 + 0.08 · 300 = 25
    assert found.largest_batch_size >= found.recomputes_from
    assert len(step.compiled) == 3


def test_a_small_step_below_its_line_does_not_end_the_search():
    found = estimate(Step(lambda size: (1 + 0.05 * size if size < 40 else 0.9 + 0.045 * size) * GIB))
    assert found.recomputes_from is None or found.recomputes_from > 300
    assert found.largest_batch_size > 600


def test_a_step_whose_memory_falls_is_tried_with_twice_the_batch():
    step = Step(lambda size: (2 - 0.001 * size if size < 100 else 0.01 * size) * GIB)
    assert 2800 < estimate(step).largest_batch_size <= 3200
    assert step.compiled[:3] == [8, 32, 64]


def test_a_step_that_does_not_fit_has_no_largest_batch():
    assert estimate(Step(lambda size: (40 + size) * GIB)).largest_batch_size is None
    assert estimate(Step(lambda size: (20 + 8 * size) * GIB)).largest_batch_size == 1


def test_sizes_are_multiples_of_what_the_step_takes_and_no_larger_than_the_data():
    step = Step(lambda size: (1 + 0.01 * size) * GIB)
    found = estimate(step, multiple_of=12, most=500)
    assert all(size % 12 == 0 for size in step.compiled)
    assert 400 < found.largest_batch_size <= 500


def test_a_step_of_one_size_is_compiled_for_that():
    step = Step(lambda size: GIB)
    assert estimate(step, sizes=(24,), multiple_of=None).largest_batch_size == 24
    assert step.compiled == [24]


def test_what_the_compiler_says_is_kept():
    def fails(size):
        raise NotImplementedError("no kernel\nfor this GPU")

    found = estimate(Step(fails))
    assert found.problem == "NotImplementedError: no kernel"
    assert found.footprints == ()


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("a100 80gb", "A100-80GB"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("3090", "RTX 3090"),
        ("RTX3060", "RTX 3060"),
        ("A6000", "RTX A6000"),
        ("NVIDIA H100 80GB HBM3", "H100"),
    ],
)
def test_a_gpu_is_found_by_the_names_that_people_and_nvidia_smi_write(written, name):
    assert [gpu.name for gpu in find([written])] == [name]


def test_all_gpus_are_named_once_and_an_unknown_one_is_told_the_known():
    names = [gpu.name for gpu in find(["T4", "all"])]
    assert len(set(names)) == len(names) > 10
    with pytest.raises(UsageError, match=r"no GPU 'A100-48GB' is known\. Known GPUs: T4, "):
        find(["A100-48GB"])


@pytest.mark.parametrize("gpu", find(["all"]), ids=lambda gpu: gpu.name)
def test_the_table_describes_every_gpu_to_the_compiler(gpu, monkeypatch):
    monkeypatch.setattr(type(backends.current()), "pool_bytes", lambda self, device: None)
    (found,) = gpu_estimates.estimate(Step(lambda size: GIB), [gpu], (24,), None, None)
    assert 0.6 * gpu.total_bytes < found.usable_bytes < gpu.total_bytes
