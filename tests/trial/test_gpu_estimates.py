"""The largest batch on a GPU that is not there, on steps whose memory is known."""

import pytest

from autofit import backends
from autofit.backends.absent_gpu import find
from autofit.errors import UsageError
from autofit.records.description import Footprint
from autofit.trial.worker import estimates

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
    return estimates.on_gpu(step, A100, sizes, multiple_of, most)


# the GiB of a step by batch size, what else is known, and the bounds of the largest batch
LARGEST = {
    "small steps below the line": (lambda size: 1 + 0.05 * size if size < 40 else 0.9 + 0.045 * size, {}, (600, 691)),
    "falling": (lambda size: 2 - 0.001 * size if size < 100 else 0.01 * size, {}, (2801, 3200)),
    "nothing fits": (lambda size: 40 + size, {}, None),
    "one sample fits": (lambda size: 20 + 8 * size, {}, (1, 1)),
    "multiples of 12, few data": (lambda size: 1 + 0.01 * size, {"multiple_of": 12, "most": 500}, (401, 500)),
    "one size": (lambda size: 1, {"sizes": (24,), "multiple_of": None}, (24, 24)),
}


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
    assert (found.problem, found.usable_bytes) == ("", 32 * GIB)


@pytest.mark.parametrize("case", LARGEST)
def test_the_largest_batch_of_a_step_is_found(case):
    gib, options, bounds = LARGEST[case]
    step = Step(lambda size: gib(size) * GIB)
    found = estimate(step, **options)
    assert all(size % (options.get("multiple_of") or 1) == 0 for size in step.compiled)
    assert found.largest_batch_size is None if bounds is None else bounds[0] <= found.largest_batch_size <= bounds[1]


def test_the_error_of_the_compiler_is_the_problem():
    def fails(size):
        raise NotImplementedError("no kernel\nfor this GPU")

    found = estimate(Step(fails))
    assert found.problem == "NotImplementedError: no kernel"
    assert found.footprints == ()


def test_a_gpu_is_found_by_the_names_that_people_and_nvidia_smi_write():
    names = {
        "NVIDIA A100-SXM4-40GB": "A100-40GB",
        "a100 80gb": "A100-80GB",
        "Tesla T4": "T4",
        "NVIDIA GeForce RTX 4090": "RTX 4090",
        "RTX3060": "RTX 3060",
        "A6000": "RTX A6000",
        "NVIDIA H100 80GB HBM3": "H100",
    }
    assert [gpu.name for gpu in find(list(names))] == list(names.values())


def test_all_gpus_are_named_once_and_an_unknown_one_is_told_the_known():
    names = [gpu.name for gpu in find(["T4", "all"])]
    assert len(set(names)) == len(names) > 10
    with pytest.raises(UsageError, match=r"no GPU 'A100-48GB' is known\. Known GPUs: T4, "):
        find(["A100-48GB"])


def test_the_table_describes_every_gpu_to_the_compiler(monkeypatch):
    monkeypatch.setattr(type(backends.current()), "pool_bytes", lambda self, device: None)
    for gpu in find(["all"]):
        usable_bytes = estimates.on_gpu(Step(lambda size: GIB), gpu, (24,), None, None).usable_bytes
        assert 0.6 * gpu.total_bytes < usable_bytes < gpu.total_bytes
