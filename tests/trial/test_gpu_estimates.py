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

    def __init__(self, gib_at, error=0.0):
        self.gib_at = gib_at
        self.error = error
        self.compiled = []

    def on_gpu(self, gpu, size):
        self.compiled.append(size)
        return Footprint(
            size, {"temporaries": int(self.gib_at(size) * GIB)}, "XLA", self.error
        )


@pytest.fixture
def estimate(monkeypatch):
    monkeypatch.setattr(
        type(backends.current()), "pool_bytes", lambda self, device: 32 * GIB
    )
    return lambda step, sizes=(), multiple_of=1, most=None: estimates.on_gpu(
        step, A100, sizes, multiple_of, most
    )


@pytest.mark.parametrize(
    ("level", "sample", "error"),
    [(1, 0.05, 0.0), (0.2, 0.001, 0.1), (20, 0.5, 0.1), (3, 1.5, 0.0)],
)
def test_the_largest_batch_of_an_affine_step_is_found_in_few_compilations(
    estimate, level, sample, error
):
    step = Step(lambda size: level + sample * size, error)
    found = estimate(step)
    true = (32 / (1 + error) - level) / sample
    assert 0.9 * true <= found.largest_batch_size <= true
    assert len(set(step.compiled)) == len(step.compiled) <= 5
    assert (found.problem, found.usable_bytes) == ("", 32 * GIB)


# the GiB of a step by batch size, what else is known, and the bounds of the largest batch
LARGEST = {
    "small steps below the line": (
        lambda size: 1 + 0.05 * size if size < 40 else 0.9 + 0.045 * size,
        {},
        (600, 691),
    ),
    "falling": (
        lambda size: 2 - 0.001 * size if size < 100 else 0.01 * size,
        {},
        (2801, 3200),
    ),
    "one sample fits": (lambda size: 20 + 8 * size, {}, (1, 1)),
    "multiples of 12, few data": (
        lambda size: 1 + 0.01 * size,
        {"multiple_of": 12, "most": 500},
        (401, 500),
    ),
    "one size": (lambda size: 1, {"sizes": (24,), "multiple_of": None}, (24, 24)),
}


@pytest.mark.parametrize("case", LARGEST)
def test_the_largest_batch_of_a_step_is_found(estimate, case):
    gib, options, bounds = LARGEST[case]
    step = Step(gib)
    found = estimate(step, **options)
    assert all(size % (options.get("multiple_of") or 1) == 0 for size in step.compiled)
    assert bounds[0] <= found.largest_batch_size <= bounds[1]


def test_there_is_no_largest_batch_where_nothing_fits_or_the_compiler_fails(estimate):
    def fails(size):
        raise NotImplementedError("no kernel\nfor this GPU")

    assert estimate(Step(lambda size: 40 + size)).largest_batch_size is None
    found = estimate(Step(fails))
    assert (found.problem, found.footprints) == ("NotImplementedError: no kernel", ())


def test_gpus_are_found_by_the_names_that_people_and_nvidia_smi_write_and_described_to_the_compiler(
    monkeypatch,
):
    monkeypatch.setattr(
        type(backends.current()), "pool_bytes", lambda self, device: None
    )
    names = {
        "NVIDIA A100-SXM4-40GB": "A100-40GB",
        "Tesla T4": "T4",
        "RTX3060": "RTX 3060",
        "A6000": "RTX A6000",
    }
    assert [gpu.name for gpu in find([*names])] == [*names.values()]
    gpus = find(["T4", "all"])
    assert len({gpu.name for gpu in gpus}) == len(gpus) > 10
    for gpu in gpus:
        usable_bytes = estimates.on_gpu(
            Step(lambda size: 1), gpu, (24,), None, None
        ).usable_bytes
        assert 0.6 * gpu.total_bytes < usable_bytes < gpu.total_bytes
    with pytest.raises(UsageError, match="A100-48GB"):
        find(["A100-48GB"])
